"""What one engine's failure means: for the request, for the engine, and for who is asked next."""

from collections.abc import Sequence
from types import TracebackType

from anbar.adapters.http.message import Header
from anbar.adapters.http.upstream import ConnectFailed, NoDescriptor, Reply
from anbar.apps.router.engine import Engine
from anbar.apps.router.outgoing import OutOfTime
from anbar.apps.router.record import FailedAttempt, Record
from anbar.apps.router.relay import Relay
from anbar.apps.router.standing import Standing
from anbar.core.clock import Clock
from anbar.core.errors import NoEngine, UpstreamError, UpstreamStalled, UpstreamTimeout
from anbar.core.outcome import AttemptFailed, AttemptFailure
from anbar.route.breaker import Signal
from anbar.route.retry_budget import RetryBudget

MAX_EXECUTIONS = 2
"""Engines that may have begun to work on one request: it may be what kills them."""

_UNAVAILABLE = frozenset((502, 503, 504))
SIGNALS = {
    AttemptFailure.UNREACHABLE: Signal.FAILED,
    AttemptFailure.TIMEOUT: Signal.STALLED,
    AttemptFailure.UNAVAILABLE: Signal.FAILED,
    AttemptFailure.ERROR: Signal.FAILED,
    AttemptFailure.BUSY: Signal.NOTHING,
    AttemptFailure.NO_DESCRIPTOR: Signal.NOTHING,
}
"""What each failure says about the engine."""

_NOT_REACHED = frozenset((AttemptFailure.UNREACHABLE, AttemptFailure.TIMEOUT))
"""Failures after which an engine gets nothing until a probe succeeds."""

_EXECUTED = frozenset((AttemptFailure.UNREACHABLE, AttemptFailure.TIMEOUT, AttemptFailure.ERROR))
"""Failures of an engine that may have begun to work, unless it never had the request."""


class Declined(UpstreamError):
    """An engine answered with a status for which the next engine is asked."""

    def __init__(self, engine: Engine, status: int, kind: AttemptFailure) -> None:
        super().__init__(f"engine {engine.id} answered {status}")
        self.kind = kind


class Interrupted(UpstreamError):
    """An engine was lost in the middle of a stream that another one may go on with; the client was not told
    yet."""

    def __init__(self, relay: Relay) -> None:
        super().__init__(str(relay.error))
        self.relay = relay
        stalled = isinstance(relay.error, UpstreamStalled)
        self.kind = AttemptFailure.TIMEOUT if stalled else AttemptFailure.UNREACHABLE


def kind_of_status(status: int, pause_s: float | None) -> AttemptFailure | None:
    """How an answer fails; None when it is the answer. `pause_s`: its Retry-After."""
    if status == 429 or (status == 503 and pause_s is not None):
        return AttemptFailure.BUSY
    if status in _UNAVAILABLE:
        return AttemptFailure.UNAVAILABLE
    return AttemptFailure.ERROR if status == 500 else None


def kind_of(error: UpstreamError) -> AttemptFailure:
    match error:
        case Declined() | Interrupted():
            return error.kind
        case NoDescriptor():
            return AttemptFailure.NO_DESCRIPTOR
        case UpstreamTimeout():
            return AttemptFailure.TIMEOUT
        case _:
            return AttemptFailure.UNREACHABLE


def was_executed(error: UpstreamError) -> bool:
    """Whether the engine may have begun to work on the request, and failed of it."""
    return kind_of(error) in _EXECUTED and not isinstance(error, ConnectFailed)


def signal_of(error: UpstreamError) -> Signal:
    """What a failure says about its engine; nothing, when it was the request's time that was up."""
    return Signal.NOTHING if isinstance(error, OutOfTime) else SIGNALS[kind_of(error)]


def pause_asked(headers: Sequence[Header]) -> float | None:
    """Seconds of an answer's Retry-After; None without one, or when it is a date."""
    value = next((value for name, value in headers if name == b"retry-after"), b"")
    return float(value) if value.isdigit() else None


def failure_of(engine: Engine, reply: Reply, standing: Standing) -> AttemptFailure | None:
    """How an answer fails; None when it is the answer. An engine that asks for a pause gets it."""
    if reply.status < 400:
        return None
    pause_s = pause_asked(reply.headers)
    kind = kind_of_status(reply.status, pause_s)
    if kind is AttemptFailure.BUSY and pause_s is not None:
        standing.rest(engine, pause_s)
    return kind


def noted(engine: Engine, error: UpstreamError, record: Record, now_s: float, leg: str = "") -> AttemptFailed:
    """Write a failure into the record of its request; returns the event that tells of it. `leg`: of a split
    request, for the operator."""
    kind = kind_of(error)
    record.failed.append(FailedAttempt(engine.id, kind, f"{leg}{error}", now_s - record.started_s))
    return AttemptFailed(engine.id, kind, record.request_id)


class Trial:
    """One try of an engine: its breaker is told how it went, by `signal` or by the error that ends it, and
    its health when it could not be reached."""

    __slots__ = ("_clock", "_engine", "signal", "ticket")

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self.signal = Signal.NOTHING

    def __enter__(self) -> "Trial":
        self.ticket = self._engine.breaker.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, UpstreamError):
            self.signal = signal_of(error)
            if kind_of(error) in _NOT_REACHED and not isinstance(error, Interrupted | OutOfTime):
                self._engine.health.connection_failed(str(error))
        self._engine.breaker.end(self.ticket, self.signal, self._clock.now_s())


class Walk:
    """The engines of one route, in order, as far as they may be asked."""

    def __init__(
        self,
        engines: Sequence[Engine],
        standing: Standing,
        budget: RetryBudget,
        clock: Clock,
        num_executions: int = 0,
    ) -> None:
        """`num_executions`: engines that failed on the request before, after they had it."""
        self._rest = list(engines)
        self._standing = standing
        self._budget = budget
        self._clock = clock
        self._num_executions = num_executions
        self.refused = False
        """A retry was possible, and the budget spent."""

    def first(self) -> Engine:
        """The engine that was decided on. Raises NoEngine when all have left since."""
        if not self._rest:
            raise NoEngine("every engine that could have served this has left")
        return self._rest.pop(0)

    @property
    def has_more(self) -> bool:
        """Whether there is an engine left that may be asked as things are now."""
        return any(map(self._standing.may_ask, self._rest))

    def goes_on(self, kind: AttemptFailure) -> bool:
        """Whether another engine can be asked after an answer that fails in this way."""
        return self._may(executed=kind in _EXECUTED, charged=True)

    def next(self, error: UpstreamError) -> Engine | None:
        """Who is asked after this failure. An engine that cannot be reached gets nothing more until a probe
        succeeds, which bounds what moves away from it; everything else is the budget's to bound."""
        executed = was_executed(error)
        charged = kind_of(error) is not AttemptFailure.UNREACHABLE
        if not self._may(executed, charged):
            return None
        self._num_executions += executed
        if charged:
            self._budget.spend(self._clock.now_s())
        engine = max(self._rest, key=self._standing.rank)
        self._rest.remove(engine)
        return engine

    def _may(self, executed: bool, charged: bool) -> bool:
        if self._num_executions + executed >= MAX_EXECUTIONS:
            return False
        if not self.has_more:
            return False
        self.refused = charged and not self._budget.allows(self._clock.now_s())
        return not self.refused
