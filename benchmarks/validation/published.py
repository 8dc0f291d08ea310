"""The published figures in `benchmarks/data/published`: each file's first lines say where they are from."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent.parent / "data"


def rows(name: str) -> list[dict[str, str]]:
    """Of `published/<name>.csv`, without its comments."""
    with (DATA / "published" / f"{name}.csv").open(encoding="utf-8") as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@dataclass(frozen=True, slots=True)
class TtftPoint:
    """Llama-3.1-8B on one H100, one request at a time."""

    num_tokens: int
    compute_s: float
    load_s: float


def ttft_points() -> list[TtftPoint]:
    """Without the one of 1,000 tokens, which is read off by 10 ms of 30."""
    return [
        TtftPoint(
            1000 * int(row["prompt_k"]),
            float(row["llama8b_gpu_compute_ms"]) / 1e3,
            float(row["llama8b_load_from_cpu_ms"]) / 1e3,
        )
        for row in rows("vllm_blog_2026-01-08_ttft")
        if row["prompt_k"] != "1"
    ]


@dataclass(frozen=True, slots=True)
class HitPoint:
    """Prefill of Llama-3.1-8B on one H100 when a share of the prompts is in host RAM."""

    hit_share: float
    tokens_per_s: float


NO_OFFLOAD_TOKENS_PER_S = 43_800
"""The same without a host tier: the figure's dashed line."""


def hit_points() -> list[HitPoint]:
    """By rising share."""
    return [
        HitPoint(int(row["cpu_hit_pct"]) / 100, float(row["llama8b_dma_tok_s"]))
        for row in rows("vllm_blog_2026-01-08_throughput_vs_hit")
    ]


@dataclass(frozen=True, slots=True)
class TransferPoint:
    """Bytes a second between the host and an H100, in pieces of one size."""

    piece_bytes: int
    to_device: float
    to_host: float
    to_device_by_kernel: float


def transfer_points() -> list[TransferPoint]:
    """By rising size."""
    return [
        TransferPoint(
            1024 * int(row["block_kb"]),
            *(1e9 * float(row[name]) for name in ("h2d_dma", "d2h_dma", "h2d_kernel")),
        )
        for row in rows("vllm_blog_2026-01-08_transfer_gbps")
    ]


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """One decode step."""

    context: int
    batch: int
    seconds: float


def decode_points(model: str) -> list[DecodePoint]:
    """AIConfigurator's, of a model on H100s."""
    return [
        DecodePoint(int(row["context"]), int(row["batch"]), float(row["step_ms"]) / 1e3)
        for row in rows("aiconfigurator_0.12_decode_ms")
        if row["model"] == model
    ]


@dataclass(frozen=True, slots=True)
class TableRow:
    """Of the table of 16 H100s."""

    scenario: str
    config: str
    mean_ttft_s: float
    mean_e2e_s: float
    tokens_per_s: float


def table() -> Iterator[TableRow]:
    """No offload, native and LMCache for each of two lengths; of native's two revisions the later one."""
    for row in rows("llmd_16xH100_qwen3-32b"):
        config = row["config"].partition("_")[0]
        if "first revision" not in row["config"]:
            numbers = (float(row[name]) for name in ("mean_ttft_s", "mean_e2e_s", "overall_tok_s"))
            yield TableRow(row["scenario"], config, *numbers)
