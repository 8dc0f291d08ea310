"""What happened, as frozen values: applications emit them, telemetry subscribes.

None of them carries a prompt, a token, a key or a header.
"""

import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from pathlib import PurePath

import msgspec

from anbar.core.fleet import EngineState
from anbar.core.ids import EngineId, RequestId


class Outcome(StrEnum):
    """How a request ended."""

    OK = "ok"
    REFUSED = "refused"
    """The router answered 4xx: nothing reached an engine."""
    ENGINE_ERROR = "engine_error"
    """An engine's own 4xx or 5xx was passed through."""
    NO_ENGINE = "no_engine"
    UPSTREAM_FAILED = "upstream_failed"
    """Every engine that was tried failed before its first byte."""
    BROKEN = "broken"
    """The engine failed after its first byte, or the router was stopped: the client saw an error."""
    CLIENT_GONE = "client_gone"
    INTERNAL = "internal"
    """A defect of ours."""


class AttemptFailure(Enum):
    """Why one engine did not answer a request."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"
    """It answered 502, 503 or 504."""
    BUSY = "busy"
    """It answered 429, or 503 with Retry-After: it asks for a pause."""
    ERROR = "error"
    """It answered 500."""
    NO_DESCRIPTOR = "no_descriptor"
    """The router itself had no file descriptor left for a connection."""


GAP_BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds for the times between the chunks of a stream."""


class TrafficClass(StrEnum):
    """Whose request it is, as far as metrics tell them apart: few, and none of a client's making."""

    DEFAULT = "default"


class RequestFacts(msgspec.Struct):
    """What is noted of a request. Times are seconds; counts of tokens are 0 when unknown."""

    request_id: RequestId
    endpoint: str
    model: str = ""
    """A model of the fleet, or "" when the client named none of them."""
    scope: str | None = None
    """Who shares its KV; None where there are no tenants, or it is not known whose it is."""
    outcome: Outcome = Outcome.INTERNAL
    status: int = 0
    engine: EngineId | None = None
    stream: bool = False
    traffic_class: TrafficClass = TrafficClass.DEFAULT
    policy: str = ""
    degraded: str = ""
    """Why routing was not precise; "" when it was."""
    num_attempts: int = 0
    retried: tuple[EngineId, ...] = ()
    """The engines that were asked after another one had failed, in their order."""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    predicted_cached_tokens: int | None = None
    """None: nothing was looked up, because the policy does not ask or the prompt was not tokenized."""
    reported_cached_tokens: int | None = None
    predicted_ttft_s: float = 0.0
    ttft_s: float | None = None
    """From the request's last byte in to the answer's first byte out."""
    engine_ttft_s: float | None = None
    """From sending to the engine that answered to its first byte: what `predicted_ttft_s` predicts, if the
    answer is streamed."""
    tokenize_s: float = 0.0
    reported_ttft_s: float | None = None
    """The engine's own word, from its arrival there to the first token, of streams and others."""
    reported_queue_s: float | None = None
    """The part of that in the engine's queue."""
    reported_itl_s: float | None = None
    """The engine's own word, between two tokens on average; None for an answer of one."""
    num_chunks: int = 0
    gap_counts: list[int] = []
    """Of the times between chunks, by `GAP_BUCKETS_S` and one more for all longer; empty without any."""
    mean_gap_s: float = 0.0
    max_gap_s: float = 0.0
    num_body_bytes: int = 0
    continued: bool = False
    """Its engine was lost in mid-stream, and `engine` went on: what is said of its first byte, and what was
    predicted of it, is the first engine's."""
    broken: str = ""
    """Why its answer broke off after the first byte, as its client was told; "" when it did not."""
    split: str = ""
    """Where prefill and decode are split: what became of that (`anbar.route.split`)."""
    prefill_engine: EngineId | None = None
    """Who computed the prompt for the engine that answered."""
    prefill_s: float = 0.0
    """What that took."""
    replayed: bool = False
    """It repeated an earlier request, whose answer it got (Idempotency-Key)."""
    refusal: str = ""
    """Why the router refused it: the code in its answer, or `other`; "" when it did not."""


class RequestFinished(RequestFacts, frozen=True):  # type: ignore[misc]  # msgspec may
    """One request from its first byte to its last."""

    e2e_s: float = 0.0


class RequestMalformed(msgspec.Struct, frozen=True):
    """Something was refused before it was a request: broken HTTP, too large, too slow."""

    status: int


class AttemptFailed(msgspec.Struct, frozen=True):
    """An engine was tried and did not answer."""

    engine: EngineId
    failure: AttemptFailure
    request_id: RequestId = RequestId("")


class PrefillEnded(msgspec.Struct, frozen=True):
    """The first leg of a split request is over."""

    engine: EngineId
    """Who was asked last."""
    verdict: str
    """`split`, or why the decode engine computed after all."""
    seconds: float


class RetryRefused(msgspec.Struct, frozen=True):
    """A request was not tried elsewhere, although it could have been: the budget of retries is spent."""


class BreakerChanged(msgspec.Struct, frozen=True):
    """An engine's circuit breaker opened, half-opened or closed."""

    engine: EngineId
    state: str


class EngineStateChanged(msgspec.Struct, frozen=True):
    """An engine may now be given requests, or no longer."""

    engine: EngineId
    before: EngineState
    after: EngineState
    reason: str


class KvStreamGap(msgspec.Struct, frozen=True):
    """KV events of an engine were lost beyond replay."""

    engine: EngineId
    num_missing: int


class KvStreamRestarted(msgspec.Struct, frozen=True):
    """An engine's event stream began anew: what was known of it is dropped."""

    engine: EngineId


class TrustChanged(msgspec.Struct, frozen=True):
    """What the prefix index is worth for an engine: precise, rebuilding, comparing (`anbar.route.drift`)."""

    engine: EngineId
    before: str
    after: str
    share: float
    """Of the cached tokens that events had told, absent in the answers that this was judged by."""


class TokensCompared(msgspec.Struct, frozen=True):
    """The router's tokens of a few fixed texts were compared with an engine's."""

    engine: EngineId
    result: str
    """agrees, differs, unverified."""
    detail: str
    """Which text, and where; or why it could not be asked."""


class LoadCorrected(msgspec.Struct, frozen=True):
    """An engine said for long that it has nothing, while requests to it were not over."""

    engine: EngineId
    num_ghosts: int
    """So many count as its load no more."""


_NUM_PLACES = 4
"""Of the way of an error: the last ones, which tell it from others."""


class SupervisorCaught(msgspec.Struct, frozen=True):
    """A supervisor caught an error that nobody expected: a defect."""

    where: str
    error: str
    """The error's class."""
    at: str = ""
    """The innermost places in the code that it went through: what it says might be somebody's prompt."""

    @classmethod
    def of(cls, where: str, error: BaseException) -> "SupervisorCaught":
        """What is told of `error`, caught by the supervisor `where`."""
        frames = traceback.extract_tb(error.__traceback__)[-_NUM_PLACES:]
        at = " < ".join(f"{PurePath(frame.filename).stem}:{frame.lineno}" for frame in reversed(frames))
        return cls(where, type(error).__name__, at)


Event = (
    RequestFinished
    | RequestMalformed
    | AttemptFailed
    | PrefillEnded
    | RetryRefused
    | BreakerChanged
    | EngineStateChanged
    | KvStreamGap
    | KvStreamRestarted
    | TrustChanged
    | TokensCompared
    | LoadCorrected
    | SupervisorCaught
)

Emit = Callable[[Event], None]
"""Where events go. A subscriber must be quick and must not raise."""


@dataclass(frozen=True, slots=True)
class CostGauges:
    """What the router has learned of one engine's speed, in seconds."""

    overhead_s: float = 0.0
    s_per_token: float = 0.0
    s_per_token2: float = 0.0
    mean_error: float = 0.0
    """Of predictions of the time to first token, as a share of them."""
    host_s_per_token: float = 0.0
    shared_s_per_token: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """The state of one engine at the moment of looking."""

    engine: EngineId
    state: EngineState
    num_in_flight: int
    queued_prefill_tokens: int
    num_decoding: int
    num_idle_connections: int
    num_stale_connections: int
    kv_connected: bool
    kv_seq: int
    """Sequence number of the last KV batch taken in; -1 before the first."""
    kv_lag_s: float
    """Age of the last KV batch when it was taken in, by the engine's clock."""
    breaker: str = "closed"
    """State of the engine's circuit breaker."""
    costs: CostGauges = CostGauges()
    degraded: str = ""
    """Why its cache cannot be predicted precisely; "" when it can."""
    num_checked: Mapping[str, int] = field(default_factory=dict)
    """Requests by what the self-check found."""
    num_rebuilds: int = 0
    tokens: str = "remote"
    """Whether the router's tokens are the engine's: remote, comparing, agrees, differs, unverified."""
    num_reported: float = math.nan
    """Sequences that the engine says it has; NaN when it does not say."""
    num_strangers: int = 0
    num_ghosts: int = 0


@dataclass(frozen=True, slots=True)
class DiscoveryGauges:
    """One entry of the configuration whose engines are listed elsewhere, at the moment of looking."""

    entry: str
    num_engines: int
    """That were found and are used."""
    last_success_s: float
    """When a look last succeeded, in seconds since 1970; 0: never."""
    failing: bool
    num_failed: Mapping[str, int]
    """Looks that failed, by why."""
    num_joined: int
    num_left: int
    num_unused: Mapping[str, int]
    """Engines that were found and are not used, by why."""


@dataclass(frozen=True, slots=True)
class FleetGauges:
    """The state of the router at the moment of looking."""

    engines: tuple[EngineGauges, ...]
    num_index_blocks: int
    num_index_parked: int
    num_index_orphans: int
    num_index_rows: int
    num_index_refused: int
    num_connections: int
    num_lost_log_lines: int
    draining: bool
    config_generation: int
    config_refused: bool
    num_config_needs_restart: int
    num_recorded: int = 0
    num_record_dropped: int = 0
    num_record_failed: int = 0
    num_followed: int = 0
    """Other routers whose changes are heard."""
    num_exchange_dropped: int = 0
    """Changes that others did not get one by one, since they read too slowly."""
    discovery: tuple[DiscoveryGauges, ...] = ()
