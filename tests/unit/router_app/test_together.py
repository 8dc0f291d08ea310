"""Answers in which several routers have a part, when something is wrong."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from test_peer_exchange import exchange_at
from tests.waiting import within

from anbar.adapters.http.message import Answer, Request
from anbar.apps.router.explain_endpoint import ExplainEndpoint
from anbar.apps.router.sharing import Told
from anbar.apps.router.together import Own, Together
from anbar.core.outcome import Event, SupervisorCaught


class Broken(ExplainEndpoint):
    """Has a defect."""

    def __init__(self) -> None:
        pass

    def latest(self) -> Any:
        raise ZeroDivisionError


async def answer_to(path: bytes, parent: Path | None, events: list[Event]) -> Answer:
    own = cast(Own, SimpleNamespace(explain=Broken()))
    together = Together(exchange_at(Path("/nowhere"), Told()), own, parent, events.append)
    asked = cast(Any, SimpleNamespace(request=Request(b"GET", path, (), b""), on_gone=None))
    assert together.takes(asked)
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    together.start(asked, Answer(200, b"own"), lambda _, answer: answered.set_result(answer))
    return await within(answered)


async def test_a_defect_is_answered_and_counted() -> None:
    """No client waits for ever: it gets a 500, and the log a line."""
    events: list[Event] = []
    assert (await answer_to(b"/admin/explain", None, events)).status == 500
    (caught,) = events
    assert isinstance(caught, SupervisorCaught)
    assert (caught.where, caught.error) == ("endpoint", "ZeroDivisionError")
    assert re.match(r"test_together:\d+ < together:\d+", caught.at)


async def test_one_worker_does_not_pass_for_all(tmp_path: Path) -> None:
    """The parent does not answer: no page at all, since a page of one worker would be a reset of every
    counter."""
    (tmp_path / "parent.sock").touch()
    assert (await answer_to(b"/metrics", tmp_path / "parent.sock", [])).status == 503
