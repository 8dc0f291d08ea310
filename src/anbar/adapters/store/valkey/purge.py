"""Removes all entries whose names fit a pattern, on every node."""

import time
from functools import partial

from anbar.adapters.store.valkey.exchange import Exchange
from anbar.adapters.store.valkey.nodes import FAILURES, Nodes
from anbar.adapters.store.valkey.replies import ProtocolError, ServerError
from anbar.adapters.store.valkey.wire import Node, Wire
from anbar.tier.store import Outcome

_NAMES_PER_STEP = 1000
"""Names that a server looks at in one step, during which it serves nobody else: well below a millisecond."""


def purge(nodes: Nodes, exchange: Exchange, pattern: bytes, deadline_s: float) -> Outcome:
    """HIT when there were any, MISS when none, TIMEOUT or ERROR when a node was not walked to its end."""
    if time.monotonic() >= deadline_s:
        return Outcome.TIMEOUT
    outcomes: dict[Node, Outcome] = {}

    def visit(node: Node) -> None:
        outcomes[node] = _purge_node(nodes, node, pattern, deadline_s)

    primaries = exchange.know_nodes(deadline_s)
    exchange.side_by_side([partial(visit, node) for node in primaries])
    found = set(outcomes.values())
    if len(outcomes) < len(primaries) or not primaries:
        return Outcome.ERROR
    worst_first = (Outcome.TIMEOUT, Outcome.ERROR, Outcome.HIT)
    return next((outcome for outcome in worst_first if outcome in found), Outcome.MISS)


def _purge_node(nodes: Nodes, node: Node, pattern: bytes, deadline_s: float) -> Outcome:
    try:
        wire = nodes.take(node, deadline_s)
        try:
            outcome = _walk(nodes, node, wire, pattern, deadline_s)
        except FAILURES:
            nodes.drop(wire)
            raise
        nodes.give(node, wire)
    except TimeoutError as error:
        nodes.failed(node, error)
        return Outcome.TIMEOUT if time.monotonic() >= deadline_s else Outcome.ERROR
    except FAILURES as error:
        nodes.failed(node, error)
        return Outcome.ERROR
    return outcome


def _walk(nodes: Nodes, node: Node, wire: Wire, pattern: bytes, deadline_s: float) -> Outcome:
    cursor, outcome = b"0", Outcome.MISS
    while True:
        reply = wire.call(
            *(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % _NAMES_PER_STEP), deadline_s=deadline_s
        )
        match reply:
            case [bytes(cursor), list(names)]:
                pass
            case ServerError(text):
                nodes.failed(node, text)
                return Outcome.ERROR
            case _:
                raise ProtocolError(f"the reply to a SCAN is {reply!r:.50}")
        # One at a time: a cluster's node takes no command on names of several slots.
        wire.send([(b"UNLINK", name) for name in names if isinstance(name, bytes)], deadline_s)
        for removed in [wire.reply(deadline_s) for _ in names]:
            if isinstance(removed, ServerError):
                nodes.failed(node, removed.text)
                outcome = Outcome.ERROR
            elif removed and outcome is Outcome.MISS:
                outcome = Outcome.HIT
        if cursor == b"0":
            return outcome
