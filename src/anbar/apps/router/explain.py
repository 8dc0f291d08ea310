"""The last routed requests, so that each one's choice can be explained; and the short form for a header.

Bounded by number. Kept are records that requests have anyway: no text, no token, no header.
"""

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from anbar.adapters.http.message import Header, Request
from anbar.apps.router.local import is_local
from anbar.apps.router.record import Record
from anbar.config.models import ExplainConfig, ExplainHeader
from anbar.core.fleet import Prediction
from anbar.route.explain import Candidate, Decision, candidates_of

MAX_HEADER_BYTES = 1024
"""Clients and proxies take headers of 4 to 16 KiB in all."""

_HEADER = b"x-anbar-explain"


class Kept(msgspec.Struct, frozen=True):
    """One routed request; `record` goes on changing while it runs."""

    record: Record
    at_s: float
    """When it was routed, in seconds since 1970."""


class ExplainLog:
    """The last `config.keep` routed requests. `wall_s` gives seconds since 1970."""

    def __init__(self, config: ExplainConfig, wall_s: Callable[[], float]) -> None:
        self.limit = config.keep
        self._header = config.header
        self._wall_s = wall_s
        self._kept: deque[Kept] = deque(maxlen=config.keep)

    def add(self, record: Record) -> None:
        """Keep a request that was just routed, or that nothing could serve."""
        self._kept.append(Kept(record, self._wall_s()))

    def find(self, request_id: str) -> list[Kept]:
        """All kept requests that had this id, the newest first: clients may use one twice."""
        return [kept for kept in reversed(self._kept) if kept.record.request_id == request_id]

    def latest(self, limit: int) -> list[Kept]:
        """The newest first."""
        return [kept for kept, _ in zip(reversed(self._kept), range(limit), strict=False)]

    @property
    def oldest_s(self) -> float | None:
        """When the oldest one was routed; None when there is none."""
        return self._kept[0].at_s if self._kept else None

    def headers(self, request: Request, record: Record) -> Sequence[Header]:
        """The answer's explanation, if this client asked for one and may have it."""
        if request.header(_HEADER) != b"1" or record.decision is None or not self._may(request):
            return ()
        return ((_HEADER, header_value(record.decision).encode("ascii", "replace")),)

    def _may(self, request: Request) -> bool:
        if self._header is ExplainHeader.LOCAL:
            return is_local(request)
        return self._header is ExplainHeader.ALWAYS


def header_value(decision: Decision) -> str:
    """One line of at most `MAX_HEADER_BYTES`: the policy, then each engine, the choice first. Times: ms."""
    route = decision.route
    candidates = candidates_of(decision)
    about = "~" if decision.is_estimate else ""
    parts = [f"policy={route.policy if route is not None else 'none'} tokens={about}{decision.num_tokens}"]
    num_bytes = len(parts[0])
    for place, candidate in enumerate(candidates):
        text = _brief(candidate)
        num_bytes += 2 + len(text)
        if num_bytes + len("; +999 more") > MAX_HEADER_BYTES:
            parts.append(f"+{len(candidates) - place} more")
            break
        parts.append(text)
    return "; ".join(parts)


def _brief(candidate: Candidate) -> str:
    name = candidate.engine.id
    if candidate.prediction is None:
        return f"{name} {candidate.verdict.value}"
    mode = candidate.mode.value + (f":{candidate.mode_reason}" if candidate.mode_reason else "")
    return f"{name} {_costs(candidate, candidate.prediction)} {mode}"


def _costs(candidate: Candidate, found: Prediction) -> str:
    match = found.match
    return (
        f"score={_ms(candidate.score_s)} wait={_ms(found.wait_s)} load={_ms(found.load_s)} "
        f"prefill={_ms(found.prefill_s)} delay={_ms(candidate.imposed_s)} "
        f"later={_ms(found.later_s)} "
        f"cached={match.device}/{match.host - match.device}/{match.shared - match.host}"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"
