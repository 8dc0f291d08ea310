"""Events that come seconds late: the engine says so, and its answers do not count as drift."""

import asyncio

import pytest
from test_kv_feed import Router, prompt

from anbar.adapters.vllm.kv_events import KvStreamStatus
from anbar.apps.router import self_check
from anbar.apps.router.engine import LATE_S, KvFollowing
from anbar.apps.router.record import Record
from anbar.apps.router.self_check import SelfCheck
from anbar.core.fleet import PrefixMatch
from anbar.core.ids import RequestId
from anbar.core.outcome import Outcome
from anbar.core.request import RouteQuery
from anbar.route.drift import DriftLimits, Trust


def followed(lag_s: float, num_waiting: int) -> Router:
    """A router whose engine's last batch was so old, with more behind it."""
    router = Router()
    router.engine.kv = KvFollowing("ipc://nobody", lag_s=lag_s)
    router.engine.kv.status = KvStreamStatus(connected=True, complete=True, num_waiting=num_waiting)
    return router


@pytest.mark.parametrize(
    ("lag_s", "num_waiting", "reason"),
    [(LATE_S + 1, 1, "kv_events_late"), (LATE_S - 1, 1, ""), (LATE_S + 1, 0, "")],
    ids=["late", "a burst", "an old replay that is all read"],
)
def test_an_engine_is_late_while_old_events_wait(lag_s: float, num_waiting: int, reason: str) -> None:
    """Old events, and more of them to come: what was sent there counts as well as what they tell. An engine
    that has told all is not late, however old the last of it is."""
    engine = followed(lag_s, num_waiting).engine
    assert (engine.degraded(), engine.is_told()) == (reason, True)


@pytest.mark.parametrize("num_waiting", [1, 0])
async def test_late_events_are_no_drift(monkeypatch: pytest.MonkeyPatch, num_waiting: int) -> None:
    """As many answers as make drift contradict the index. While events wait that may explain them, they say
    nothing; else they do."""
    monkeypatch.setattr(self_check, "SETTLE_S", 0.0)
    router = followed(LATE_S + 1, num_waiting)
    query = RouteQuery(RequestId("r"), "m", (*prompt(1), 0), 5)
    check = SelfCheck(router.index, router.feed, router.events.append)
    for _ in range(DriftLimits().min_requests):
        record = Record(request_id=RequestId("r"), endpoint="/", started_s=0.0)
        record.decided_s, record.reported_cached_tokens = 1.0, 0
        record.ended(Outcome.OK, 200)
        check.answered(router.engine, query, PrefixMatch(device=64), record)
    await asyncio.wait(tuple(check._tasks))
    assert router.engine.checks.over == (0 if num_waiting else DriftLimits().min_requests)
    assert (router.engine.drift.trust is Trust.PRECISE) is bool(num_waiting)
    await check.stop()
