"""What one router counts of another's requests, compared with the other's own books."""

import asyncio
import random

import pytest
from scripted import engine_at

from anbar.adapters.vllm.reading import read_already
from anbar.apps.router.changes import Anew, Change, Held, Placed, decode, encode
from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.load import Plan, Share
from anbar.apps.router.sharing import PeerShare, SharedCaches, SharedLoad, Told, packed, unpacked
from anbar.core.clock import ManualClock
from anbar.core.errors import UpstreamUnreachable, WireError
from anbar.core.fleet import Prediction, PrefixMatch
from anbar.core.ids import ChainHash, EngineId, RequestId
from anbar.core.request import RouteQuery
from anbar.route import PrefixIndex
from anbar.route.placements import Placements

A, B = EngineId("a"), EngineId("b")
BLOCK = 16


class Side:
    """One router's engines, caches and books."""

    def __init__(self, clock: ManualClock) -> None:
        self.told = Told()
        self.placements = Placements()
        engines = [engine_at(1, name) for name in (A, B)]
        for engine in engines:
            engine.load = SharedLoad(engine.id, self.told)
            self.placements.attach(engine.id, "m", BLOCK)
        self.fleet = Fleet(engines)
        self.caches = SharedCaches(self.told, self.fleet, PrefixIndex(), self.placements, clock, 120.0)
        self.clock = clock

    def share(self) -> PeerShare:
        return PeerShare(self.fleet, self.placements, self.clock)

    def believed(self, prompt: int, name: EngineId) -> int:
        found = self.placements.in_doubt(query_of(prompt), [name], self.clock.now_s())
        return found[name].device


def query_of(prompt: int) -> RouteQuery:
    tokens = tuple(range(prompt * 1000, prompt * 1000 + 5 * BLOCK + 1))
    return RouteQuery(RequestId("r"), "m", tokens, len(tokens))


def books(engine: Engine) -> tuple[int, int, int, int, int]:
    load = engine.load
    in_flight = load.num_in_flight + load.num_elsewhere
    return in_flight, load.num_decoding, load.queue.tokens, load.queue.pairs, load.queue.num_loading


def plan(rng: random.Random, all_stream: bool) -> Plan:
    device = rng.randrange(0, 500)
    match = PrefixMatch(device, device + rng.choice((0, 16)), device + 16)
    return Plan(
        rng.randrange(600, 5000), Prediction(match, 0.0, 0.0, rng.random()), all_stream or rng.random() < 0.8
    )


@pytest.mark.parametrize("seed", range(20))
def test_another_router_has_the_same_books(seed: int) -> None:
    """Requests come, are answered, fail and end in any order: a router that was there from the beginning
    counts what their own router counts, and so does one that comes at any moment, but for prompts of answers
    that do not stream, which it takes to wait until their time is over. At the end all is zero."""
    all_stream = seed % 2 == 0
    rng, clock = random.Random(seed), ManualClock()
    ours, early = Side(clock), Side(clock)
    from_the_start = early.share()
    ours.told.tell = lambda change: from_the_start.take(decode(encode([change]))[0])
    running: list[tuple[Share, bool]] = []
    for _ in range(200):
        clock.advance(rng.random() / 100)
        act = rng.random()
        if act < 0.4 or not running:
            share = ours.fleet[rng.choice((A, B))].load.hold(plan(rng, all_stream), clock)
            share.__enter__()
            running.append((share, False))
        else:
            at = rng.randrange(len(running))
            share, is_answered = running[at]
            if act < 0.7 and not is_answered:
                share.first_byte(rng.choice((200, 200, 500)))
                running[at] = share, True
            else:
                share.__exit__(None, None, None)
                del running[at]
        late = Side(clock)
        joined = late.share()
        for change in ours.told.everything():
            joined.take(change)
        for name in (A, B):
            assert books(early.fleet[name]) == books(ours.fleet[name])
            assert books(late.fleet[name])[0] == books(ours.fleet[name])[0]
            assert not all_stream or books(late.fleet[name]) == books(ours.fleet[name])
    for share, _ in running:
        share.__exit__(None, None, None)
    assert [books(engine) for engine in early.fleet] == [(0, 0, 0, 0, 0)] * 2


def test_a_router_that_is_gone_has_nothing_in_flight() -> None:
    """What was told of it is taken out, and what comes of it afterwards changes nothing."""
    clock = ManualClock()
    ours, other = Side(clock), Side(clock)
    share, changes = other.share(), list[Change]()
    ours.told.tell = changes.append
    held = ours.fleet[A].load.hold(Plan(100), clock)
    with held, ours.caches.sent(A, query_of(1), read_already(())):
        for change in changes:
            share.take(change)
        assert books(other.fleet[A])[0] == 1
        assert other.believed(1, A) == 5 * BLOCK
        share.lost()
        assert books(other.fleet[A]) == (0, 0, 0, 0, 0)
        seen = len(changes)
    for change in changes[seen:]:
        share.take(change)
    assert books(other.fleet[A]) == (0, 0, 0, 0, 0)
    clock.advance(3.0)
    assert other.believed(1, A) == 0


def test_placements_are_believed_as_their_own_router_does() -> None:
    """In flight, after the first byte, when the engine failed, and when anything else went wrong: then nobody
    knows how far the engine got."""
    clock = ManualClock()
    ours, other = Side(clock), Side(clock)
    ours.told.tell = other.share().take
    with ours.caches.sent(A, query_of(1), read_already(())) as placement:
        clock.advance(60.0)
        assert other.believed(1, A) == ours.believed(1, A) == 5 * BLOCK
        assert other.believed(1, B) == other.believed(2, A) == 0
        ours.caches.first_byte(A, placement, 200)
        clock.advance(1.0)
        assert other.believed(1, A) == ours.believed(1, A) == 5 * BLOCK
        clock.advance(2.0)
        assert other.believed(1, A) == ours.believed(1, A) == 0
    sent = ours.caches.sent(B, query_of(2), read_already(()))
    sent.__enter__()
    assert other.believed(2, B) == 5 * BLOCK
    assert not sent.__exit__(UpstreamUnreachable, UpstreamUnreachable("it is away"), None)
    assert other.believed(2, B) == ours.believed(2, B) == 0
    for error in (ValueError(), asyncio.CancelledError()):
        sent = ours.caches.sent(A, query_of(3), read_already(()))
        sent.__enter__()
        assert not sent.__exit__(type(error), error, None)
        assert other.believed(3, A) == ours.believed(3, A) == 5 * BLOCK
        clock.advance(3.0)
        assert other.believed(3, A) == ours.believed(3, A) == 0


def test_engines_that_are_not_here_are_passed_over() -> None:
    """Another router may have more engines in its configuration."""
    side = Side(ManualClock())
    share = side.share()
    for change in (Held(1, "other", 5, 25, 0.1, True, False), Placed(2, "other", packed([ChainHash(1)]))):
        share.take(change)
    assert share.num_in_flight == 0
    share.take(Anew())


def test_chains_cross_the_wire() -> None:
    """Eight bytes a block; a torn end is dropped, and what is no list of changes refused."""
    chain = [ChainHash(value) for value in (0, 1, 2**64 - 1)]
    assert unpacked(packed(chain)) == chain
    assert unpacked(packed(chain)[:-1]) == chain[:-1]
    for data in (b"", b"\xc1", encode([Anew()])[:-1], b"\x91\x91\x63"):
        with pytest.raises(WireError):
            decode(data)


def test_a_ghost_is_no_load_at_any_router() -> None:
    """The engine says for long that it has nothing: the router whose request it is tells the others, and
    leaves alone what others have waiting there. Its first byte and its end change nothing any more."""
    clock = ManualClock()
    ours, other = Side(clock), Side(clock)
    share, back = other.share(), ours.share()
    ours.told.tell, other.told.tell = share.take, back.take
    ghost = ours.fleet[A].load.hold(Plan(100), clock).__enter__()
    theirs = other.fleet[A].load.hold(Plan(7), clock).__enter__()
    load = ours.fleet[A].load
    load.mark()
    assert load.drop_marked(clock.now_s()) == 1
    assert books(ours.fleet[A])[2] == books(other.fleet[A])[2] == 7
    assert load.num_believed == other.fleet[A].load.num_believed == 1
    ghost.first_byte()
    for each in (ghost, theirs):
        each.__exit__(None, None, None)
    assert [books(side.fleet[A]) for side in (ours, other)] == [(0, 0, 0, 0, 0)] * 2
    assert (load.num_ghosts, ours.told.everything()) == (0, [Anew()])
