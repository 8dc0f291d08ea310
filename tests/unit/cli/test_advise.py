"""`anbar advise` as it is typed."""

import json
from pathlib import Path

import pytest

from anbar.plan.catalogue import MODELS
from tests.unit.cli.test_commands import anbar


def test_a_calculator_says_its_figures_and_its_arithmetic(tmp_path: Path) -> None:
    """4K tokens of a 70B in FP8 from spinning disks: sizes, times, what follows; with --explain how."""
    asked = ["advise", "tier-read", "--model", "meta-llama/Llama-3.1-70B-Instruct", "--tp", "4"]
    asked += ["--dtype", "fp8", "--kv-dtype", "fp8", "--tokens", "4096", "--from", "ceph-hdd"]
    done = anbar(*asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "671 MB" in done.stdout
    assert "12.6 s" in done.stdout
    assert "helps no request's latency" in done.stdout
    assert "assumed: prefill times: AIConfigurator" in done.stdout
    explained = anbar(*asked, "--explain", cwd=tmp_path)
    assert "= 163,840 x 4,096" in explained.stdout


def test_a_models_own_config_as_json(tmp_path: Path) -> None:
    """A directory with config.json, answered for a program."""
    (tmp_path / "config.json").write_text(json.dumps(MODELS["Qwen3-8B"]))
    done = anbar("advise", "kv-size", "--model", ".", "--tokens", "1000", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    figures = {figure["name"]: figure["value"] for figure in json.loads(done.stdout)["figures"]}
    assert figures["KV of 1,000 tokens"] == 147_456_000


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "config.json: cannot be read: No such file"),
        ("{", "config.json: is not JSON"),
        ("[]", "config.json: must be an object"),
        ("{}", "config.json: num_hidden_layers is None, must be a whole number of at least 1"),
    ],
)
def test_a_config_that_cannot_be_used_is_named(tmp_path: Path, content: str | None, words: str) -> None:
    """In one line, with the file."""
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    done = anbar("advise", "kv-size", "--model", "config.json", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_reuse_of_a_trace_by_tier(tmp_path: Path) -> None:
    """A cycle of documents that host RAM holds and the GPU does not; sizes as people write them."""
    rows = [
        {
            "timestamp": n,
            "input_length": 10_241,
            "output_length": 1,
            "hash_ids": list(range(20 * k, 20 * k + 20)),
        }
        for n in range(300)
        for k in [n % 100]
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ["advise", "reuse", "log.jsonl", "--model", "Llama-3.1-8B", "--host-bytes", "150GB"]
    done = anbar(*asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "host RAM adds 66.7 %" in done.stdout
    assert (
        "--host-bytes: is 'much'; allowed: a whole number of bytes"
        in anbar(*asked[:-1], "much", cwd=tmp_path).stderr
    )
    assert "At most 66.7 %" in anbar(*asked[:3], cwd=tmp_path).stdout


def test_a_trace_without_blocks_tells_nothing_of_reuse(tmp_path: Path) -> None:
    """It says so, and what would."""
    (tmp_path / "a.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,480,10\n"
    )
    done = anbar("advise", "reuse", "a.csv", cwd=tmp_path)
    assert done.returncode == 2
    assert "a.csv: does not tell what prompts have in common" in done.stderr
    assert "router.record" in done.stderr
