"""What the reuse filter kept out, and what of it was asked for afterwards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.core.clock import ManualClock
from anbar.core.cost import PrefillCost
from anbar.tier.admission import Admission
from anbar.tier.breaker import Breaker
from anbar.tier.kept_out import KeptOut, Place, Shadow
from anbar.tier.load_speed import LoadSpeed
from anbar.tier.lookups import Lookups
from anbar.tier.pressure import Pressure, Reason
from anbar.tier.reuse import ReuseSketch
from anbar.tier.step_times import StepTimes
from anbar.tier.store import Outcome
from anbar.tier.store_gate import SHALLOW_TOKENS, StoreGate
from anbar.tier.tally import Series, Tally
from anbar.tier.wish import Wish

CHUNK, ROW_BYTES = 32, 1000
PLACE = Place(Reason.QUEUE, 96)
A_TOKEN_S = 0.001
SLOW = PrefillCost(A_TOKEN_S)


class Rig:
    """A gate under pressure and lookups over a store that holds `there`."""

    def __init__(self, prefill: PrefillCost | None = SLOW) -> None:
        clock = ManualClock()
        self.tally = Tally()
        self.pressure = Pressure(clock)
        self.gate = StoreGate(self.pressure, ReuseSketch(1 << 12), self.tally)
        self.admission = Admission(LoadSpeed(clock), StepTimes(clock), self.tally, lambda: 0, ROW_BYTES)
        self.lookups = Lookups(clock, Breaker(clock), self.tally, timeout_s=0.5)
        self.lookups.shadow = Shadow(self.gate.kept_out, self.admission, self.tally, lambda _: CHUNK)
        self.prefill = prefill
        self.there: set[bytes] = set()

    def offer(self, text: str, *, scope: str = "", known: bool = True) -> None:
        """The chunks after a prompt's first ones, which are always stored, are offered, and stored or not."""
        keys = [char.encode() for char in text]
        ends = [SHALLOW_TOKENS + CHUNK * (1 + index) for index in range(len(keys))]
        kept = self.gate.admit(scope, keys, ends if known else [None] * len(keys), always=False)
        self.there |= {keys[index] for index in kept}

    def ask(self, text: str, *, scope: str = "", answer: Outcome | None = None) -> None:
        """A request asks for keys, gets the store's answers, and ends."""
        self.lookups.open("r", Wish(scope, prefill=self.prefill))
        for char in text:
            self.lookups.answer("r", char.encode())
        for question in self.lookups.take_questions():
            said = [answer or (Outcome.HIT if k in self.there else Outcome.MISS) for k in question.keys]
            self.lookups.settle(question, said)
        self.lookups.close("r")

    def told(self) -> dict[str, float]:
        """Keys asked for, by reason; `s`: the seconds of all."""
        counts = self.tally.take()
        told = {label: num for (series, label), num in counts.items() if series is Series.FILTERED_ASKED}
        seconds = [num for (series, _), num in counts.items() if series is Series.FILTERED_SECONDS]
        return told | ({"s": sum(seconds)} if seconds else {})

    def teach(self) -> None:
        """A load takes 10 ms and 1 ms for each chunk."""
        for num in (1, 4, 16, 64) * 8:
            self.admission.speed.observe(num * ROW_BYTES, 0.01 + num * 1e-3)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_what_is_asked_for_again_was_a_loss(rig: Rig) -> None:
    """Of five chunks, two are there from before, three are kept out: a request for the five would have loaded
    three more. Its seconds are those of computing 96 tokens, less those of loading three chunks."""
    rig.teach()
    rig.offer("ab")
    rig.pressure.full()
    rig.offer("abcde")
    rig.ask("abcde")
    told = rig.told()
    loading_s = rig.admission.speed.cost.seconds(3 * ROW_BYTES)
    assert 0.01 < loading_s < 0.03
    assert told.pop("s") == pytest.approx(3 * CHUNK * A_TOKEN_S - loading_s)
    assert told == {"full": 3}


def test_each_request_that_misses_counts(rig: Rig) -> None:
    """Two requests ask before the chunk is computed again; then it is offered a second time, stored, and no
    loss any more, also when the store loses it."""
    rig.pressure.queued(1.0)
    rig.offer("a")
    rig.ask("a")
    rig.ask("a")
    assert rig.told() == {"queue": 2}
    rig.offer("a")
    rig.ask("a")
    rig.there.clear()
    rig.ask("a")
    assert rig.told() == {}


def test_a_prefix_ends_at_its_first_gap(rig: Rig) -> None:
    """`b` was kept out and `x` never seen: what comes after `x` would have been of no use."""
    rig.pressure.full()
    rig.offer("bc")
    rig.ask("xbc")
    assert rig.told() == {}
    rig.ask("bxc")
    assert rig.told() == {"full": 1}


@pytest.mark.parametrize("answer", [Outcome.TIMEOUT, Outcome.ERROR, Outcome.NO_KEY])
def test_a_store_that_does_not_answer_would_not_have_loaded(rig: Rig, answer: Outcome) -> None:
    """What was kept out is asked for while the store is away: the filter cost nothing."""
    rig.pressure.full()
    rig.offer("a")
    rig.ask("a", answer=answer)
    assert rig.told() == {}


def test_a_late_answer_ends_the_prefix(rig: Rig) -> None:
    """The first key's answer does not come in time, the second one's was that it is missing: nothing of it
    could have been used."""
    rig.pressure.full()
    rig.offer("b")
    rig.lookups.open("r", Wish(wait_s=0.0))
    rig.lookups.answer("r", b"a")
    rig.lookups.take_questions()
    rig.lookups.answer("r", b"a")
    rig.lookups.answer("r", b"b")
    for question in rig.lookups.take_questions():
        rig.lookups.settle(question, [Outcome.MISS] * len(question.keys))
    rig.lookups.close("r")
    assert rig.told() == {}


def test_scopes_are_apart(rig: Rig) -> None:
    """The same key of another scope was not kept out."""
    rig.pressure.full()
    rig.offer("a", scope="one")
    rig.ask("a", scope="two")
    assert rig.told() == {}
    rig.ask("a", scope="one")
    assert rig.told() == {"full": 1}


@pytest.mark.parametrize(
    ("prefill", "is_taught", "known"),
    [
        (None, True, True),
        (SLOW, False, True),
        (SLOW, True, False),
        (PrefillCost(1e-9), True, True),
    ],
    ids=["prefill unknown", "loads unknown", "places unknown", "computing is sooner"],
)
def test_seconds_that_nobody_knows(prefill: PrefillCost | None, is_taught: bool, known: bool) -> None:
    """Keys are counted, seconds are not, where one of both speeds is not known, or where the keys end, and
    where computing is sooner."""
    rig = Rig(prefill)
    if is_taught:
        rig.teach()
    rig.pressure.full()
    rig.offer("ab", known=known)
    rig.ask("ab")
    assert rig.told() == {"full": 2}


@given(st.lists(st.tuples(st.sampled_from(["note", "forget"]), st.sampled_from("abcdefgh")), max_size=60))
def test_nothing_is_found_that_was_not_kept_out(steps: list[tuple[str, str]]) -> None:
    """Against a dict: what is found was noted and not forgotten since, with the same place, however small the
    table. One that is large enough for all finds all."""
    small, large, kept = KeptOut(4), KeptOut(1 << 16), dict[str, Place]()
    for number, (what, name) in enumerate(steps):
        place = Place(list(Reason)[number % 3], number)
        for table in (small, large):
            if what == "note":
                table.note("s", name.encode(), place)
            else:
                table.forget("s", [name.encode()])
        if what == "note":
            kept[name] = place
        else:
            kept.pop(name, None)
        for char in "abcdefgh":
            assert small.find("s", char.encode()) in (None, kept.get(char))
            assert large.find("s", char.encode()) == kept.get(char)
        assert large.is_empty == (not kept)
        found = [char for char in kept if small.find("s", char.encode())]
        assert small.is_empty == (not found)


def test_older_keys_give_way() -> None:
    """As many keys as there are places: e^-1 of the first tenth are left, of the last all but a few."""
    table = KeptOut(1 << 12)
    keys = [number.to_bytes(4, "big") for number in range(1 << 12)]
    for key in keys:
        table.note("", key, PLACE)
    share = [sum(table.find("", key) is not None for key in part) / 400 for part in (keys[:400], keys[-400:])]
    assert share[0] == pytest.approx(0.39, abs=0.1)
    assert share[1] > 0.9


def test_impossible_sizes() -> None:
    """A mask must do for a remainder."""
    with pytest.raises(ValueError, match="num_places is 3"):
        KeptOut(3)
