"""`anbar advise`: the verdict, and small calculators about KV that leaves the GPU."""

import shutil
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from anbar.apps.advise.deployment import OPTIONS
from anbar.apps.advise.model import read_model
from anbar.apps.advise.text import as_text
from anbar.apps.advise.trace import read_trace
from anbar.apps.calibrate.files import read_cost_file
from anbar.cli.verdict import COMMAND, OrVerdict, verdict
from anbar.config.sizes import parse_size
from anbar.core.cost import PrefillCost
from anbar.core.errors import ConfigError
from anbar.plan.answer import Answer
from anbar.plan.break_even import Tenant
from anbar.plan.calculators import (
    Storing,
    break_even_of,
    kv_size_of,
    offload_of,
    tenant_of,
    tier_read_of,
)
from anbar.plan.deployment import Deployment, Impossible
from anbar.plan.media import MEDIA, medium_named
from anbar.plan.node_loss import NOTHING, Fallback, NodeLoss, Prices, node_loss_of
from anbar.plan.reuse_answer import Capacities, reuse_by_tier, reuse_in_tokens
from anbar.plan.workload import Reuse

app = typer.Typer(cls=OrVerdict, add_completion=False, no_args_is_help=True)
app.command(COMMAND)(verdict)

ModelOption = Annotated[str, typer.Option("--model", help="A name in the catalogue, or a config.json.")]
GpuOption = Annotated[str, typer.Option("--gpu", help="Of each engine: H100, A100-80GB, L4, …")]
NumOption = Annotated[int, typer.Option("--tp", min=1, max=64, help="GPUs of one engine (tensor parallel).")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="Of the weights: bfloat16, fp8, int4, …")]
KvOption = Annotated[
    str | None,
    typer.Option("--kv-dtype", help="Of KV. Default: bfloat16; weights in FP8 do not make KV FP8."),
]
CostOption = Annotated[
    Path | None, typer.Option("--cost", help="What `anbar calibrate` measured, instead of estimates.")
]
MediumOption = Annotated[str, typer.Option("--from", help=f"Where KV is kept: {', '.join(MEDIA)}.")]
ChunkOption = Annotated[int, typer.Option("--chunk", min=1, help="Tokens that are stored together.")]
ExplainOption = Annotated[bool, typer.Option("--explain", help="With the arithmetic of each figure.")]
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON.")]


@app.callback()
def advise() -> None:
    """What a cache below the GPU would do, every number shown. `anbar advise LOG …` is `verdict`."""


@app.command("kv-size")
def kv_size(
    model: ModelOption,
    gpu: GpuOption = "H100",
    tp: NumOption = 1,
    dtype: DtypeOption = "bfloat16",
    kv_dtype: KvOption = None,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Of a prompt.")] = 8192,
    explain: ExplainOption = False,
    as_json: JsonOption = False,
) -> None:
    """How large the KV of a prompt is, and how many tokens the GPUs hold."""
    _show(kv_size_of(_deployment(model, gpu, tp, dtype, kv_dtype), tokens), explain, as_json)


@app.command("break-even")
def break_even(
    model: ModelOption,
    gpu: GpuOption = "H100",
    tp: NumOption = 1,
    dtype: DtypeOption = "bfloat16",
    kv_dtype: KvOption = None,
    medium: MediumOption = "host-pcie5",
    chunk: ChunkOption = 256,
    cost: CostOption = None,
    explain: ExplainOption = False,
    as_json: JsonOption = False,
) -> None:
    """From which length, and below which bandwidth, loading loses to computing."""
    deployment = _deployment(model, gpu, tp, dtype, kv_dtype, cost)
    _show(break_even_of(deployment, medium_named(medium), chunk), explain, as_json)


@app.command("tier-read")
def tier_read(
    model: ModelOption,
    gpu: GpuOption = "H100",
    tp: NumOption = 1,
    dtype: DtypeOption = "bfloat16",
    kv_dtype: KvOption = None,
    medium: MediumOption = "ceph-hdd",
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="To read.")] = 4096,
    chunk: ChunkOption = 256,
    cost: CostOption = None,
    explain: ExplainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Reading a prefix from a store against computing it again."""
    deployment = _deployment(model, gpu, tp, dtype, kv_dtype, cost)
    _show(tier_read_of(deployment, medium_named(medium), tokens, chunk), explain, as_json)


@app.command("tenant")
def tenant(
    model: ModelOption,
    gpu: GpuOption = "H100",
    tp: NumOption = 1,
    dtype: DtypeOption = "bfloat16",
    kv_dtype: KvOption = None,
    medium: MediumOption = "host-pcie5",
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Of the prefix.")] = 6000,
    queries: Annotated[
        float, typer.Option("--queries-per-hour", min=0.001, help="Of one tenant with this prefix.")
    ] = 200.0,
    sharing: Annotated[
        int, typer.Option("--sharing", min=1, help="Tenants of one sharing group, with the same prefix.")
    ] = 1,
    kept: Annotated[
        float, typer.Option("--kept-s", min=0.0, help="How long the GPU keeps what nobody uses.")
    ] = 18.0,
    chunk: ChunkOption = 256,
    cost: CostOption = None,
    explain: ExplainOption = False,
    as_json: JsonOption = False,
) -> None:
    """What keeping one tenant's prompt prefix below the GPU saves."""
    asked = Tenant(tokens, queries * sharing / 3600.0)
    deployment = _deployment(model, gpu, tp, dtype, kv_dtype, cost)
    _show(tenant_of(deployment, medium_named(medium), asked, kept, chunk), explain, as_json)


@app.command("ha")
def ha(
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Of the store.")] = 3,
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="Copies of each chunk.")] = 1,
    lost: Annotated[int, typer.Option("--lost", min=1, help="Nodes at the same time.")] = 1,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Of a prefix in the store.")] = 8192,
    chunk: ChunkOption = 256,
    hits: Annotated[
        float, typer.Option("--hits", min=0.0, max=1.0, help="Share of prompt tokens that the store serves.")
    ] = 0.5,
    fallback: Annotated[
        str,
        typer.Option(
            "--fallback", help="What has what is lost: none; host (RAM); or a store behind, by medium."
        ),
    ] = "none",
    host_hits: Annotated[
        float | None,
        typer.Option(
            "--host-hits",
            min=0.0,
            max=1.0,
            help="With --fallback host: share of what the store served that the engine's host RAM has, too.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="For times: a name in the catalogue, or a config.json. Default: shares only."
        ),
    ] = None,
    gpu: GpuOption = "H100",
    tp: NumOption = 1,
    dtype: DtypeOption = "bfloat16",
    kv_dtype: KvOption = None,
    medium: MediumOption = "valkey-25gbe",
    cost: CostOption = None,
    explain: ExplainOption = False,
    as_json: JsonOption = False,
) -> None:
    """What losing a node of the store costs, by copies and by what is behind it."""
    prices = None
    if model is not None:
        prices = Prices(_deployment(model, gpu, tp, dtype, kv_dtype, cost), medium_named(medium))
    loss = NodeLoss(nodes, replicas, lost, tokens, chunk, hits)
    _show(node_loss_of(loss, _fallback(fallback, host_hits), prices), explain, as_json)


def _fallback(name: str, host_hits: float | None) -> Fallback:
    if name != "host" and host_hits is not None:
        raise ConfigError("command line --host-hits: allowed with --fallback host only")
    if name == "none":
        return NOTHING
    if name == "host":
        if host_hits is None:
            raise ConfigError(
                "command line --host-hits: missing; needed with --fallback host: the share that host RAM has "
                "of what the store served, from 0 to 1 (`anbar advise reuse LOG` tells what each tier finds)"
            )
        return Fallback("host RAM", host_hits)
    if name not in MEDIA:
        allowed = f"none, host, or a store's medium: {', '.join(MEDIA)}"
        raise ConfigError(f"command line --fallback: is {name!r}; allowed: {allowed}")
    return Fallback(f"the store behind ({name})", 1.0, MEDIA[name])


@app.command("async")
def asynchronous(
    model: ModelOption,
    gpu: GpuOption = "H100",
    tp: NumOption = 1,
    dtype: DtypeOption = "bfloat16",
    kv_dtype: KvOption = None,
    rate: Annotated[
        float, typer.Option("--prompt-tokens-per-s", min=1.0, help="Of one engine, computed and stored.")
    ] = 10_000.0,
    chunk: ChunkOption = 256,
    overhead: Annotated[
        float, typer.Option("--overhead", min=0.0, max=1.0, help="Throughput that storing takes.")
    ] = 0.025,
    prefill_share: Annotated[
        float, typer.Option("--prefill-share", min=0.01, max=1.0, help="Of the GPU's time.")
    ] = 0.3,
    medium: MediumOption = "host-pcie5",
    cost: CostOption = None,
    explain: ExplainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Where the cost of storing in the background hides, and the hits that pay for it."""
    deployment = _deployment(model, gpu, tp, dtype, kv_dtype, cost)
    storing = Storing(rate, medium_named(medium), overhead, prefill_share, chunk)
    _show(offload_of(deployment, storing), explain, as_json)


@app.command("reuse")
def reuse(
    trace: Annotated[
        Path, typer.Argument(help="A block log (router.record), one of Mooncake's traces, or Azure's CSV.")
    ],
    model: Annotated[
        str | None, typer.Option("--model", help="A name in the catalogue, or a config.json. Default: none.")
    ] = None,
    gpu: GpuOption = "H100",
    tp: NumOption = 1,
    dtype: DtypeOption = "bfloat16",
    kv_dtype: KvOption = None,
    engines: Annotated[int, typer.Option("--engines", min=1, help="That serve this load.")] = 1,
    host: Annotated[str, typer.Option("--host-bytes", metavar="SIZE", help="Of each engine: 100GiB.")] = "0",
    store: Annotated[str, typer.Option("--store-bytes", metavar="SIZE", help="Of a shared store.")] = "0",
    explain: ExplainOption = False,
    as_json: JsonOption = False,
) -> None:
    """What of a trace came again, and what the GPUs, host RAM and a store would have held of it."""
    sizes = Capacities(engines, _size("--host-bytes", host), _size("--store-bytes", store))
    read = read_trace(trace)
    if not read.workload.has_blocks:
        text = "does not tell what prompts have in common, so nothing is known of reuse"
        raise ConfigError(f"{trace}: {text}; record a block log for some minutes (router.record)")
    found = Reuse.of(read.workload)
    if model is None:
        answer = reuse_in_tokens(read.workload, found)
    else:
        answer = reuse_by_tier(read.workload, found, _deployment(model, gpu, tp, dtype, kv_dtype), sizes)
    notes = (*read.notes, *answer.assumptions)
    _show(msgspec.structs.replace(answer, assumptions=notes), explain, as_json)


def _size(option: str, text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise ConfigError(f"command line {option}: is {text!r}; {error}") from None


def _deployment(
    model: str, gpu: str, tp: int, dtype: str, kv_dtype: str | None, cost: Path | None = None
) -> Deployment:
    """Raises ConfigError, which names the option: there is no such model, or it cannot run like that."""
    name, config = read_model(model)
    measured = None
    if cost is not None:
        engine = read_cost_file(cost).cost
        measured = PrefillCost(engine.tokens.s_per_token, engine.prefill_s_per_token2)
    found = Deployment(name, config, gpu, tp, dtype, kv_dtype or "bfloat16", measured)
    try:
        found.check()
    except Impossible as error:
        raise ConfigError(f"command line {OPTIONS.get(error.field, '--gpu')}: {error.reason}") from error
    return found


def _show(answer: Answer, explain: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(answer)).decode())
        return
    width = shutil.get_terminal_size((110, 24)).columns
    typer.echo(as_text(answer, max(40, width), with_arithmetic=explain), nl=False)
