"""Small parts of the emulator: transfer parameters, histograms, faults that are armed, the pace."""

import pytest

from anbar.adapters.vllm.block_hash import Identity, block_hashes, root_hash
from anbar.apps.emulator.answers import Answer, AnswerRules, Writer
from anbar.apps.emulator.faults import Fault, FaultBox, FaultKind, Scope
from anbar.apps.emulator.histograms import Histogram, Page, request_tokens
from anbar.apps.emulator.pacing import LivePace, steady
from anbar.apps.emulator.sequence import TokenKeys
from anbar.apps.emulator.text import ModelText
from anbar.apps.emulator.transfer_params import NOTHING, TransferParams, parse
from anbar.core.cost import EngineCost
from anbar.sim.engine.shape import EngineShape
from anbar.sim.engine.step import Piece, Step
from anbar.tier.wish import Wish

SHAPE = EngineShape(16, 100)


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        (None, NOTHING),
        ({"max_load_tokens": 0, "max_offload_tokens": 7}, TransferParams(0, 7)),
        ({"max_load_tokens": -1, "max_offload_tokens": "7"}, NOTHING),
        ({"max_load_tokens": True}, NOTHING),
        ({"kv_load_tiers": []}, TransferParams(loads_shared=False)),
        ({"kv_load_tiers": "CPU"}, NOTHING),
        ({"kv_load_tiers": [{"medium": "cpu"}]}, TransferParams(loads_shared=False)),
        ({"kv_load_tiers": [{"medium": "CPU"}, {"locality": "remote"}]}, NOTHING),
        ({"kv_load_tiers": [{"medium": "STORAGE", "locality": "LOCAL"}]}, TransferParams(loads_shared=False)),
        ({"kv_load_tiers": [{"medium": "TAPE"}, 5]}, NOTHING),
        ({"anbar": {"v": 1, "scope": "a"}}, TransferParams(wish=Wish(scope="a"))),
    ],
)
def test_transfer_params(params: dict[str, object] | None, wanted: TransferParams) -> None:
    """What can be read is obeyed, what cannot is as if it were not there."""
    assert parse(params) == wanted


def test_histograms() -> None:
    """Bounds are inclusive, counts add up from the smallest, and the sum is that of all values."""
    histogram = Histogram("vllm:x", "X.", (1, 2))
    for value in (0.5, 1, 1.5, 7):
        histogram.observe(value)
    page = Page({"engine": "0"})
    page.histogram(histogram)
    lines = page.render().decode().splitlines()
    assert lines == [
        "# HELP vllm:x X.",
        "# TYPE vllm:x histogram",
        'vllm:x_bucket{engine="0",le="1.0"} 2.0',
        'vllm:x_bucket{engine="0",le="2.0"} 3.0',
        'vllm:x_bucket{engine="0",le="+Inf"} 4.0',
        'vllm:x_count{engine="0"} 4.0',
        'vllm:x_sum{engine="0"} 10.0',
    ]
    assert request_tokens(300) == (1, 2, 5, 10, 20, 50, 100, 200)


def test_labels_are_escaped() -> None:
    """A model's name may hold what would end a label."""
    page = Page({"model_name": 'a"b\\c\nd'})
    page.sample("x", 1)
    assert page.render() == b'x{model_name="a\\"b\\\\c\\nd"} 1.0\n'


def test_faults_are_counted() -> None:
    """Each fault meets as many requests of its scope as it says, in the order of arming."""
    box = FaultBox()
    twice, always = Fault(FaultKind.SLOW, count=2), Fault(FaultKind.RESET, count=0, scope=Scope.ALL)
    box.arm(twice)
    box.arm(always)
    assert box.take(generating=False) is always
    assert [box.take(generating=True) for _ in range(4)] == [twice, twice, always, always]
    box.clear()
    assert box.take(generating=True) is None


def test_a_hang_does_not_outlive_its_clearing() -> None:
    """What hangs goes on when faults are cleared, unless its client has left; what would hang only after that
    does not begin to."""
    box, gone_on = FaultBox(), []
    box.hang(1, lambda: gone_on.append("first"), box.num_clears)
    box.hang(2, lambda: gone_on.append("left"), box.num_clears)
    box.forget(2)
    assert not gone_on
    before = box.num_clears
    box.clear()
    box.hang(3, lambda: gone_on.append("second"), before)
    assert gone_on == ["first", "second"]


@pytest.mark.parametrize("field", ["count", "after_events", "delay_s"])
def test_impossible_faults(field: str) -> None:
    """Refused by the name of the field."""
    with pytest.raises(ValueError, match=field):
        Fault(FaultKind.SLOW, **{field: -1})


def test_the_pace_can_change() -> None:
    """The next step has the cost that was set last; `steady` charges steps and prompt tokens."""
    pace = LivePace(EngineCost())
    prefill = Step(pieces=[Piece(None, 0, 101)])  # type: ignore[arg-type]
    decode = Step(pieces=[Piece(None, 100, 1)])  # type: ignore[arg-type]
    assert pace.seconds(prefill, SHAPE) == 0
    pace.cost = steady(step_s=0.5, prefill_s_per_token=0.01)
    assert pace.seconds(decode, SHAPE) == pytest.approx(0.5)
    assert pace.seconds(prefill, SHAPE) == pytest.approx(1.5)
    assert steady(front_s=2.0).front_seconds(1000) == 2.0


def test_the_seed_is_in_every_hash(text: ModelText) -> None:
    """Engines that are started with different seeds share no block."""
    answer = Answer(text, Writer(text, 0).draw((5,), None, 0), AnswerRules(60, ignore_eos=True))
    found = [TokenKeys(tuple(range(16)), answer, 4) for _ in range(2)]
    found[1].root = root_hash("7")
    assert not set(found[0].first(4)) & set(found[1].first(4))


def test_keys_of_real_tokens(text: ModelText) -> None:
    """Keys reach into the answer as it grows: they are the hashes of prompt and answer together."""
    prompt = tuple(range(10, 31))
    answer = Answer(text, Writer(text, 0).draw(prompt, None, 0), AnswerRules(60, ignore_eos=True))
    keys = TokenKeys(prompt, answer, 4, Identity(salt="s"))
    whole = [*prompt, *answer.first(60)]
    for num_blocks in (3, 5, 6, 13, 13, 9, 20):
        wanted = block_hashes(whole[: 4 * num_blocks], 4, Identity(salt="s"))
        assert list(keys.first(num_blocks)) == wanted
        assert keys.tokens(num_blocks - 2, 2) == whole[4 * (num_blocks - 2) : 4 * num_blocks]
