"""The models of a scenario's YAML: what each key means, its unit and its default."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from anbar.apps.simulate.setup import Mode
from anbar.config.fields import Bytes, ConfigModel, Int, Name
from anbar.config.models import Offload, PolicyName
from anbar.plan.catalogue import GPUS
from anbar.plan.kv_size import DTYPE_BYTES
from anbar.plan.media import MEDIA
from anbar.plan.prefill import FORMATS
from anbar.sim.engine.store import StoreFaultKind


def _one_of(known: tuple[str, ...]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in known:
            raise ValueError(f"allowed: {', '.join(known)}")
        return value

    return AfterValidator(check)


def _range(value: object) -> object:
    """A length: one number, or the least and the most."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value, value)
    pair = value if isinstance(value, list | tuple) else ()
    if len(pair) != 2 or not all(isinstance(v, int) and not isinstance(v, bool) for v in pair):
        raise ValueError("allowed: a number of tokens, or [least, most]")
    if pair[0] > pair[1]:
        raise ValueError("allowed: [least, most], the first not above the second")
    return tuple(pair)


Tokens = Annotated[tuple[Annotated[Int, Field(ge=0)], Annotated[Int, Field(ge=0)]], BeforeValidator(_range)]
"""A number of tokens, or `[least, most]`, between which each is as likely."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[Int, Field(ge=1)]


class Pick(StrEnum):
    """Which of several prefixes or documents a session has."""

    UNIFORM = "uniform"
    ZIPF = "zipf"
    """The n-th is asked for 1/n as often as the first."""
    CYCLE = "cycle"
    """One after the other."""


class TraceConfig(ConfigModel):
    """Requests of a file, open loop: they come when they came."""

    path: str = "mooncake-conversation"
    """A block log (`router.record`), one of Mooncake's traces or Azure's CSV, relative to the scenario;
    `mooncake-conversation` is bundled: 1,000 requests of a public chat trace."""

    first: Annotated[Int, Field(ge=0)] = 0
    """How many requests to leave out at the beginning."""

    requests: Count | None = None
    """How many to take; null: all."""

    speed: Positive = 1.0
    """So many times as fast as they came."""

    shared: bool = True
    """false: no prompt has anything in common with another, as a comparison."""


class DocumentsConfig(ConfigModel):
    """Retrieved passages, put between prefix and question in the order in which they were found."""

    count: Count = 100
    """There are so many."""

    each: Count = 4
    """So many are in a prompt. Only those that stand where they stood before, after the same ones, are found
    again: a prefix cache knows no passages."""

    tokens: Tokens = (500, 500)
    pick: Pick = Pick.ZIPF


class StreamConfig(ConfigModel):
    """Sessions of one kind: a prompt is what all share, one of several prefixes, documents and the turns so
    far."""

    name: Name = "all"
    """In results."""

    rate: Positive | None = None
    """New sessions a second, as a Poisson process. Give this or `clients`."""

    clients: Count | None = None
    """So many have one session after the other, without a pause."""

    sessions: Count | None = None
    """No more than so many; null: as many as begin within `duration_s`."""

    shared_tokens: Tokens = (0, 0)
    """At the beginning of all prompts."""

    prefixes: Count = 1
    """Different ones after that: system prompts of tenants, say."""

    prefix_tokens: Tokens = (0, 0)
    pick: Pick = Pick.ZIPF
    """Which prefix a session has."""

    adapters: Annotated[Int, Field(ge=0)] = 0
    """LoRA adapters on the same base, each as likely: equal tokens have other KV with each. 0: none."""

    documents: DocumentsConfig | None = None
    turns: Annotated[Int, Field(ge=1, le=1000)] = 1
    """Of a session; each prompt begins with all turns before it."""

    question_tokens: Tokens = (200, 200)
    """New in each turn."""

    answer_tokens: Tokens = (200, 200)
    think_s: NotNegative = 0.0
    """Between an answer and the next turn."""


class WorkloadConfig(ConfigModel):
    """What is asked. Give `trace` or `streams`."""

    duration_s: Positive | None = None
    """Nothing new begins after that; null: a trace's own, and 60 s of streams."""

    trace: TraceConfig | None = None
    streams: tuple[StreamConfig, ...] = ()


class FleetConfig(ConfigModel):
    """Equal engines."""

    model: str = "Llama-3.1-8B"
    """A name in the catalogue (`anbar advise`), or a config.json, relative to the scenario."""

    gpu: Annotated[str, _one_of(tuple(GPUS))] = "H100"
    tp: Annotated[Int, Field(ge=1, le=64)] = 1
    """GPUs of one engine."""

    dtype: Annotated[str, _one_of(tuple(FORMATS))] = "bfloat16"
    """Of the weights."""

    kv_dtype: Annotated[str, _one_of(tuple(DTYPE_BYTES))] = "bfloat16"
    engines: Annotated[Int, Field(ge=1, le=256)] = 1
    prefill_engines: Annotated[Int, Field(ge=0)] = 0
    """Of these, so many compute prompts for the others; KV goes through the shared store. 0: all do both."""

    kv_tokens: Count | None = None
    """That an engine's GPUs hold; null: estimated from their memory. vLLM logs it when it starts."""

    block_size: Annotated[Int, Field(ge=8, multiple_of=8)] | None = None
    """Tokens; null: 16, of a trace its own. Larger blocks are simulated faster."""

    max_num_seqs: Count = 256
    max_num_batched_tokens: Count = 8192
    cost_file: Path | None = None
    """What `anbar calibrate` measured, relative to the scenario; null: estimates."""


class StoreConfig(ConfigModel):
    """The shared tier."""

    medium: Annotated[str, _one_of(tuple(MEDIA))] = "valkey-25gbe"
    """What lies between an engine and the store."""

    capacity_bytes: Bytes | None = None
    """null: without bounds."""

    nodes: Annotated[Int, Field(ge=1, le=64)] = 1
    copies: Annotated[Int, Field(ge=1)] = 1
    """Of each chunk, on different nodes."""


class CacheConfig(ConfigModel):
    """Where KV goes when it leaves the GPUs."""

    modes: Annotated[tuple[Mode, ...], Field(min_length=1)] = (Mode.NONE, Mode.NATIVE)
    """Each is run under the same load: none, native (host RAM), shared (host RAM and the store)."""

    host_bytes: Bytes = 64 << 30
    """Of each engine."""

    chunk_tokens: Count = 256
    offload: Offload = Offload.ALL
    store: StoreConfig = StoreConfig()


class RouterConfig(ConfigModel):
    """How an engine is chosen."""

    policy: PolicyName = PolicyName.PREDICTED_TTFT


class SloConfig(ConfigModel):
    """What a good answer is: goodput counts those that keep both."""

    ttft_s: Positive = 2.0
    itl_s: Positive = 0.1
    """Mean time between the tokens of an answer."""


class EventConfig(ConfigModel):
    """Something happens to a node of the store."""

    at_s: NotNegative
    node: Annotated[Int, Field(ge=0)] = 0
    kind: StoreFaultKind = StoreFaultKind.DEAD
    until_s: Positive | None = None
    """null: to the end."""

    delay_s: NotNegative = 0.0
    """Of each call, of kind slow."""


class SweepConfig(ConfigModel):
    """The same again with less and less HBM, to find from which utilisation on offload gains."""

    kv_tokens: Annotated[tuple[Count, ...], Field(min_length=2)]
    """Of each engine, in place of `fleet.kv_tokens`."""


class Scenario(ConfigModel):
    """A load on a fleet, with one or more kinds of cache."""

    about: str = ""
    """A line for `anbar simulate --list`."""

    workload: WorkloadConfig
    fleet: FleetConfig = FleetConfig()
    cache: CacheConfig = CacheConfig()
    router: RouterConfig = RouterConfig()
    slo: SloConfig = SloConfig()
    seed: Int = 1
    events: tuple[EventConfig, ...] = ()
    sweep: SweepConfig | None = None
