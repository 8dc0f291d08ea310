"""What is noted of a request while it runs; becomes one `RequestFinished`."""

from dataclasses import dataclass
from operator import attrgetter

import msgspec

from anbar.adapters.http.engine_times import find_engine_times
from anbar.adapters.http.usage import find_usage
from anbar.core.ids import EngineId
from anbar.core.outcome import AttemptFailure, Outcome, RequestFacts, RequestFinished
from anbar.core.request import RouteQuery
from anbar.route.explain import Decision

_facts_of = attrgetter(*RequestFacts.__struct_fields__, "e2e_s")


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An engine that was asked and did not answer; `detail` is for the operator, not for clients."""

    engine: EngineId
    failure: AttemptFailure
    detail: str
    after_s: float
    """Since the request came."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A request that runs and is to be recorded at its end."""

    query: RouteQuery
    session: str


class Record(RequestFacts, kw_only=True):
    """The facts of a request that runs, from `started_s` on the router's clock."""

    started_s: float
    decided_s: float = 0.0
    decision: Decision | None = None
    pending: Pending | None = None
    """What the block log will need of it; only while it runs, for it holds the prompt's tokens."""
    failed: list[FailedAttempt] = msgspec.field(default_factory=list)
    prefill: "Record | None" = None
    """Of the first leg of a split request: who computed the prompt."""
    num_executions: int = 0
    """Prefill engines that failed on it after they had it."""
    e2e_s: float | None = None
    """None while it runs."""

    def asks(self, engine: EngineId) -> None:
        """An engine is sent the request."""
        if self.num_attempts:
            self.retried += (engine,)
        self.num_attempts += 1

    def ended(self, outcome: Outcome, status: int) -> None:
        self.outcome = outcome
        self.status = status

    def reported(self, tail: bytes, *, is_estimated: bool = False) -> None:
        """Take in what the engine says of itself at the end of its answer; `is_estimated`: the prompt was not
        tokenized to its end."""
        usage, times = find_usage(tail), find_engine_times(tail)
        if usage is not None:
            self.num_output_tokens = usage.completion_tokens
            self.reported_cached_tokens = usage.cached_tokens
            if is_estimated or (self.decision is not None and self.decision.tokens_note):
                self.num_prompt_tokens = usage.prompt_tokens  # it was only estimated
        if times is not None:
            self.reported_ttft_s, self.reported_queue_s = times.ttft_s, times.queue_s
            self.reported_itl_s = times.itl_s

    def finished(self, now_s: float) -> RequestFinished:
        self.e2e_s = now_s - self.started_s
        return RequestFinished(*_facts_of(self))
