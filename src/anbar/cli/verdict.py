"""`anbar advise LOG`: neither, native or shared."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from typer.core import TyperGroup

from anbar.apps.advise.deployment import DeploymentSpec, missing_of, read_stack
from anbar.apps.advise.html import verdict_as_html
from anbar.apps.advise.pressure import SNIPPET, read_pressure
from anbar.apps.advise.text import as_text
from anbar.apps.advise.trace import read_trace
from anbar.apps.advise.verdict_text import verdict_as_text
from anbar.apps.advise.write import refuse_to_overwrite, write_verdict
from anbar.core.errors import ConfigError
from anbar.plan.estimates import notes_of
from anbar.plan.stack import Stack
from anbar.plan.verdict import Verdict, verdict_of

COMMAND = "verdict"


class OrVerdict(TyperGroup):
    """A group whose command need not be named: what begins with none of its commands is for the verdict."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [COMMAND, *args]
        return super().parse_args(ctx, args)


LogArgument = Annotated[
    Path | None,
    typer.Argument(
        help="A block log (router.record), one of Mooncake's traces, or a log of requests. Azure's CSV tells "
        "nothing of what comes again."
    ),
]
FileOption = Annotated[
    Path | None, typer.Option("--deployment", metavar="FILE", help="What follows, as YAML.")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="A name in the catalogue, or a config.json.")
]
GpuOption = Annotated[str | None, typer.Option("--gpu", help="Of each engine: H100, A100-80GB, L4, …")]
TpOption = Annotated[int | None, typer.Option("--tp", help="GPUs of one engine. Default: 1.")]
EnginesOption = Annotated[int | None, typer.Option("--engines", help="That serve this load. Default: 1.")]
DtypeOption = Annotated[str | None, typer.Option("--dtype", help="Of the weights. Default: bfloat16.")]
KvOption = Annotated[
    str | None,
    typer.Option("--kv-dtype", help="Of KV. Default: bfloat16; weights in FP8 do not make KV FP8."),
]
PoolOption = Annotated[
    int | None, typer.Option("--pool-tokens", help="That one engine holds, as vLLM logs at its start.")
]
RamOption = Annotated[
    str | None, typer.Option("--ram", metavar="SIZE", help="Host RAM that each engine can be given.")
]
StoreOption = Annotated[
    str | None, typer.Option("--store-medium", help="Of a store to share: valkey-25gbe, ceph-rgw-ssd, …")
]
StoreBytesOption = Annotated[
    str | None, typer.Option("--store-bytes", metavar="SIZE", help="Of the whole store.")
]
ConcurrencyOption = Annotated[
    float | None, typer.Option("--concurrency", help="Requests at a time. Default: as the log says.")
]
AffinityOption = Annotated[
    bool | None,
    typer.Option("--affinity/--no-affinity", help="Whether requests go to where their prefix is."),
]
CostOption = Annotated[
    str | None, typer.Option("--cost", help="What `anbar calibrate` measured, instead of estimates.")
]
TokenizerOption = Annotated[
    str, typer.Option("--tokenizer", help="The model's directory, for a log of requests.")
]
MetricsOption = Annotated[
    str | None, typer.Option("--metrics", metavar="URL", help="vLLM's /metrics, or a Prometheus server.")
]
MinutesOption = Annotated[int, typer.Option("--minutes", min=1, help="To record a block log for.")]
SimulateOption = Annotated[
    int,
    typer.Option("--simulate", min=0, metavar="N", help="The log's first N requests, for queues. 0: none."),
]
SloOption = Annotated[
    float | None, typer.Option("--slo-ttft-s", help="Objective for the time to first token.")
]
ExplainOption = Annotated[bool, typer.Option("--explain", help="With the arithmetic of each figure.")]
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON.")]
HtmlOption = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also as a page.")]
WriteOption = Annotated[
    Path | None, typer.Option("--write", metavar="DIR", help="anbar.yaml and values.yaml that apply it.")
]


def verdict(
    log: LogArgument = None,
    deployment: FileOption = None,
    model: ModelOption = None,
    gpu: GpuOption = None,
    tp: TpOption = None,
    engines: EnginesOption = None,
    dtype: DtypeOption = None,
    kv_dtype: KvOption = None,
    pool: PoolOption = None,
    ram: RamOption = None,
    store: StoreOption = None,
    store_bytes: StoreBytesOption = None,
    concurrency: ConcurrencyOption = None,
    affinity: AffinityOption = None,
    cost: CostOption = None,
    tokenizer: TokenizerOption = "",
    metrics: MetricsOption = None,
    minutes: MinutesOption = 30,
    num_simulated: SimulateOption = 1000,
    slo: SloOption = None,
    explain: ExplainOption = False,
    as_json: JsonOption = False,
    html: HtmlOption = None,
    write: WriteOption = None,
) -> None:
    """Neither, native or shared: which cache below the GPU pays for the traffic of a log, and why."""
    if metrics is not None:
        _refuse_beside_metrics({"a log": log, "--html": html, "--write": write})
        _show_pressure(metrics, minutes, explain, as_json)
        return
    if log is None:
        raise ConfigError("a verdict needs a log of requests, or --metrics URL; see anbar advise --help")
    said = {
        "model": model,
        "gpu": gpu,
        "tensor_parallel": tp,
        "engines": engines,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "pool_tokens": pool,
        "ram": ram,
        "store": _store(store, store_bytes),
        "concurrency": concurrency,
        "affinity": affinity,
        "cost": cost,
        "slo_ttft_s": slo,
    }
    spec, stack = read_stack(deployment, said)
    if write is not None:
        refuse_to_overwrite(write)
    found = _decided(log, tokenizer, spec, stack, num_simulated)
    if html is not None:
        _write_page(html, found)
    written = write_verdict(write, found, spec) if write is not None else ()
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        typer.echo(verdict_as_text(found, _width(), with_arithmetic=explain), nl=False)
        _show_written(*written, *([html] if html is not None else []))


def _refuse_beside_metrics(given: dict[str, Path | None]) -> None:
    for name, value in given.items():
        if value is not None:
            text = f"metrics give no verdict; {name} needs one; allowed: one of both"
            raise ConfigError(f"command line --metrics: {text}")


def _show_written(*paths: Path) -> None:
    for path in paths:
        typer.echo(f"written: {path}")


def _decided(log: Path, tokenizer: str, spec: DeploymentSpec, stack: Stack, num: int) -> Verdict:
    read = read_trace(log, tokenizer)
    if not read.workload.has_blocks:
        text = "does not tell what prompts have in common, so nothing is known of reuse"
        raise ConfigError(f"{log}: {text}; record a block log for some minutes (router.record)")
    found = verdict_of(read.workload, stack, missing_of(spec))
    # The router's code takes half a second to import, and no calculator needs it.
    from anbar.apps.advise.simulated import simulated  # noqa: PLC0415

    given = replace(stack, host_bytes=found.host_bytes) if stack.host_bytes is None else stack
    ran = simulated(read.workload, given, found.choice, num)
    instead = () if ran.figures else notes_of(found.estimates)
    return msgspec.structs.replace(
        found,
        figures=(*found.figures, *(ran.figures or found.estimates)),
        warnings=(*read.notes, *found.warnings),
        assumptions=(*found.assumptions, ran.note, *instead),
    )


def _store(medium: str | None, num_bytes: str | None) -> dict[str, Any] | None:
    if medium is None:
        if num_bytes is not None:
            raise ConfigError("command line --store-bytes: of which store? give --store-medium too")
        return None
    return {"medium": medium, **({"capacity": num_bytes} if num_bytes is not None else {})}


def _show_pressure(url: str, minutes: int, explain: bool, as_json: bool) -> None:
    answer = read_pressure(url, minutes)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(answer)).decode())
        return
    typer.echo(as_text(answer, _width(), with_arithmetic=explain), nl=False)
    typer.echo(f"\n{SNIPPET}", nl=False)


def _write_page(path: Path, found: Verdict) -> None:
    try:
        path.write_text(verdict_as_html(found), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def _width() -> int:
    return max(40, shutil.get_terminal_size((110, 24)).columns)
