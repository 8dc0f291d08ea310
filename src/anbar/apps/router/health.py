"""Whether an engine may be given requests: a state machine without a clock or a socket."""

from collections.abc import Callable

from anbar.core.fleet import EngineState

FAILURES_BEFORE_UNHEALTHY = 2
"""Probes in a row that may fail softly (too slow, wrong status) before an engine gets no more requests: an
engine in a long prefill may be late once. A refused or broken connection is not soft."""


class Health:
    """STARTING until the first good probe; UNHEALTHY at once when a connection fails, and until the next good
    probe. `changed(before, after, reason)` is called on each change."""

    def __init__(self, changed: Callable[[EngineState, EngineState, str], None]) -> None:
        self._changed = changed
        self._num_soft_failures = 0
        self.state = EngineState.STARTING
        self.reason = "not probed yet"
        self.last_error = ""

    def probe_succeeded(self) -> None:
        self._num_soft_failures = 0
        self._become(EngineState.READY, "answers")

    def probe_was_late(self, reason: str) -> None:
        """It answered late, wrongly, or with an error."""
        self.last_error = reason
        self._num_soft_failures += 1
        if self._num_soft_failures >= FAILURES_BEFORE_UNHEALTHY:
            self._fail(reason)

    def connection_failed(self, reason: str) -> None:
        """It refused or broke a connection, in a probe or in a request."""
        self.last_error = reason
        self._fail(reason)

    def drain(self, reason: str) -> None:
        """It gets nothing new any more, whatever it answers: for good."""
        self._become(EngineState.DRAINING, reason)

    def _fail(self, reason: str) -> None:
        if self.state is EngineState.STARTING:
            self.reason = reason
        else:
            self._become(EngineState.UNHEALTHY, reason)

    def _become(self, state: EngineState, reason: str) -> None:
        if self.state is EngineState.DRAINING:
            return
        before, self.state = self.state, state
        self.reason = reason
        if before is not state:
            self._changed(before, state, reason)
