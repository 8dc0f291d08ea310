"""Carries commands to the servers that have their entries, many at a time, and the outcomes back in time."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from anbar.adapters.store.valkey.commands import Command
from anbar.adapters.store.valkey.nodes import FAILURES, Nodes
from anbar.adapters.store.valkey.wire import Node, Request, Wire
from anbar.tier.breaker import judge
from anbar.tier.store import Outcome

_MAX_ROUNDS = 4
"""Times that a command may be sent somewhere else, as slots move."""
_MAX_THREADS = 64


@dataclass(slots=True)
class _Errand:
    """A command on its way. `result` is None until it is known; a redirection leaves it unknown."""

    command: Command
    node: Node | None
    asking: bool = False
    result: Outcome | None = None


class Exchange:
    """Thread-safe. Nothing of a call goes on when it has returned: each wait ends at the call's deadline, and
    the caller waits for all that it began."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="anbar-valkey")

    def run(self, commands: Sequence[Command], deadline_s: float, depth: int) -> list[Outcome]:
        """One outcome per command. `depth`: of how many commands replies may be outstanding at a server; when
        half of them have come, more are sent at once, so that nobody is woken for each."""
        if time.monotonic() >= deadline_s:
            return [Outcome.TIMEOUT] * len(commands)
        self.know_nodes(deadline_s)
        errands = [_Errand(command, self._nodes.of(command.name)) for command in commands]
        for _ in range(_MAX_ROUNDS):
            by_node: dict[Node, list[_Errand]] = defaultdict(list)
            for errand in errands:
                if errand.result is None and errand.node is not None:
                    by_node[errand.node].append(errand)
            if not by_node:
                break
            visits = [partial(self._visit, node, to, deadline_s, depth) for node, to in by_node.items()]
            self.side_by_side(visits)
        return [errand.result or Outcome.ERROR for errand in errands]

    def know_nodes(self, deadline_s: float) -> list[Node]:
        """Who has entries; asks, if nobody could be asked before."""
        primaries = self._nodes.primaries()
        if not primaries and self._nodes.refresh(deadline_s):
            primaries = self._nodes.primaries()
        return primaries

    def side_by_side(self, works: Sequence[Callable[[], None]]) -> None:
        """Do all of them, which must end by themselves and not raise. When closed, only the first is done."""
        others: list[Future[None]] = []
        with suppress(RuntimeError):  # closed meanwhile
            for work in works[1:]:
                others.append(self._threads.submit(work))  # noqa: PERF401 (those begun must be waited for)
        for work in works[:1]:
            work()
        wait(others)

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False)

    def _visit(self, node: Node, errands: list[_Errand], deadline_s: float, depth: int) -> None:
        """Settle or redirect the errands of one node."""
        breaker = self._nodes.breaker(node) if self._nodes.is_cluster else None
        ticket = breaker.admit() if breaker is not None else None
        if breaker is not None and ticket is None:
            _settle(errands, Outcome.ERROR)
            return
        try:
            wire = self._nodes.take(node, deadline_s)
            self._talk(node, wire, errands, deadline_s, depth)
        except TimeoutError as error:
            self._nodes.failed(node, error)
            _settle(errands, Outcome.TIMEOUT if time.monotonic() >= deadline_s else Outcome.ERROR)
        except FAILURES as error:
            self._nodes.failed(node, error)
            _settle(errands, Outcome.ERROR)
        if breaker is not None and ticket is not None:
            breaker.record(ticket, judge([errand.result or Outcome.MISS for errand in errands]))

    def _talk(self, node: Node, wire: Wire, errands: list[_Errand], deadline_s: float, depth: int) -> None:
        refusals = 0
        try:
            sent = 0
            for index, errand in enumerate(errands):
                if sent - index <= depth // 2 and sent < len(errands):
                    more = errands[sent : index + depth]
                    wire.send([request for one in more for request in _requests(one)], deadline_s)
                    sent += len(more)
                refusals += self._receive(node, wire, errand, deadline_s)
        except FAILURES:
            self._nodes.drop(wire)
            raise
        if refusals:  # by one that is no primary any more, or has got a password: the next may be another
            self._nodes.drop(wire)
        else:
            self._nodes.give(node, wire)

    def _receive(self, node: Node, wire: Wire, errand: _Errand, deadline_s: float) -> bool:
        """Settle or redirect one; whether the server refused it."""
        if errand.asking:
            wire.reply(deadline_s)
        result = errand.command.receive(wire, deadline_s)
        if isinstance(result, Outcome):
            errand.result = result
        elif result.code == "OOM":
            errand.result = Outcome.FULL
            self._nodes.complain(node, result.text)
        elif self._nodes.is_cluster and result.code in ("MOVED", "ASK"):
            errand.node = self._nodes.redirected(errand.command.name, result.text, node)
            errand.asking = result.code == "ASK"
        else:
            errand.result = Outcome.ERROR
            self._nodes.failed(node, result.text)
            return True
        return False


def _requests(errand: _Errand) -> Sequence[Request]:
    request = errand.command.request()
    return [(b"ASKING",), request] if errand.asking else [request]


def _settle(errands: Sequence[_Errand], outcome: Outcome) -> None:
    for errand in errands:
        errand.result = errand.result or outcome
