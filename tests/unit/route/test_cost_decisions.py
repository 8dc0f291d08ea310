"""What the seconds of the cost model decide: the exact points at which the choice turns, and how far the
predicted delay of running answers is from what the engine model does."""

import math
from random import Random

import pytest
from msgspec.structs import replace

from anbar.apps.calibrate.target import Ask
from anbar.apps.emulator.default_cost import H100_8B, KV_BYTES_PER_TOKEN
from anbar.core.cost import LoadCost, PrefillCost
from anbar.core.cost_file import CostFile, EngineType, Measured
from anbar.core.cost_prior import prefill_prior
from anbar.core.events import Tier
from anbar.core.fleet import EngineView, PrefixMatch
from anbar.core.ids import EngineId
from anbar.route.policies import make_policy
from anbar.route.policies.predicted_ttft import TIE_RATIO, TIE_S
from anbar.route.predict import LATER_PER_WAITING, predict, predict_all
from anbar.sim.engine.shape import EngineShape
from tests.unit.calibrate.virtual_engine import VirtualEngine

from .builders import query, view

COST = PrefillCost(a_s_per_token=1e-3, b_s_per_token2=1e-7, overhead_s=0.5)
PROMPT = range(10_000)
FULL_S = 20.5
"""All of it: 10 s linear, 10 s quadratic, and the overhead."""
REST_S = 3.4
"""Its last 1,000 tokens: 1 s linear, 1.9 s quadratic, and the overhead."""
LIMIT_S = FULL_S * (1 + TIE_RATIO) + TIE_S
"""Up to here the holder's score counts as equal to that of an idle engine that must compute all, and then the
holder wins."""


def chosen(*views: EngineView, **matches: PrefixMatch) -> str:
    """The engine that a long prompt goes to, however ties break."""
    by_id = {EngineId(name): match for name, match in matches.items()}
    targets = {
        make_policy("predicted_ttft", Random(seed)).decide(query(PROMPT), views, by_id).target
        for seed in range(5)
    }
    (target,) = targets
    return target


def on_device(num_tokens: int) -> PrefixMatch:
    return PrefixMatch(num_tokens, num_tokens, num_tokens)


def queued(name: str, seconds: float, **more: float) -> EngineView:
    """An engine with so many seconds of prompts before it."""
    return view(name, prefill=COST, queued=round(seconds * 1000), **more)  # type: ignore[arg-type]


def test_the_holder_of_a_long_prompt_wins_until_its_queue_takes_longer_than_computing() -> None:
    """9,000 of 10,000 tokens are on a. The choice turns at the millisecond at which waiting there and
    computing the rest is more than computing all on b."""
    break_even_s = LIMIT_S - REST_S
    idle = view("b", prefill=COST)
    assert chosen(queued("a", break_even_s - 0.002), idle, a=on_device(9000)) == "a"
    assert chosen(queued("a", break_even_s + 0.002), idle, a=on_device(9000)) == "b"


def test_differences_that_may_be_noise_decide_nothing() -> None:
    """a seems to be 30 % slower than b, and holds the prompt. If what is known of the two may be off by as
    much together, a is chosen; if it is known well, b. No doubt makes up for twice the time."""

    def held_by(slower: float, doubt: float) -> str:
        quick = PrefillCost(a_s_per_token=1e-3, overhead_s=0.0)
        cost = PrefillCost(a_s_per_token=slower * 1e-3 * 10_000 / 1000, overhead_s=0.0)
        holder = replace(view("a", prefill=cost), doubt=doubt)
        return chosen(holder, replace(view("b", prefill=quick), doubt=doubt), a=on_device(9000))

    assert held_by(1.3, 0.2) == "a"
    assert held_by(1.3, 0.05) == "b"
    assert held_by(2.0, 0.9) == "b"


def test_what_is_done_of_the_queue_is_not_waited_for() -> None:
    """The same queue, two seconds too long; the engine has worked on it for three."""
    too_long_s = LIMIT_S - REST_S + 2
    idle = view("b", prefill=COST)
    assert chosen(queued("a", too_long_s), idle, a=on_device(9000)) == "b"
    assert chosen(queued("a", too_long_s, done_s=3.0), idle, a=on_device(9000)) == "a"


def test_a_queue_of_short_prompts_is_shorter_than_one_long_prompt() -> None:
    """12,000 tokens before it, as twelve prompts (1.2 s of attention) or as one (14.4 s): the holder is worth
    waiting for behind the twelve only."""
    many = view("a", prefill=COST, queued=12_000, pairs=12 * 1000**2)
    one = view("a", prefill=COST, queued=12_000, pairs=12_000**2)
    idle = view("b", prefill=COST)
    assert chosen(many, idle, a=on_device(9000)) == "a"
    assert chosen(one, idle, a=on_device(9000)) == "b"


def test_host_memory_is_worth_a_wait_of_what_it_saves() -> None:
    """a holds the prefix in host memory (2 s to load), b on its device, but b has a queue: the choice turns
    where the queue takes as long as the load, the tie included."""
    loads = {Tier.HOST: LoadCost(2.0 / 9000)}
    host = view("a", prefill=COST, loads=loads)
    tie_s = (2.0 + REST_S) * (1 + TIE_RATIO) + TIE_S - REST_S
    matches = {"a": PrefixMatch(0, 9000, 9000), "b": on_device(9000)}
    assert chosen(host, queued("b", tie_s - 0.002), **matches) == "b"
    assert chosen(host, queued("b", tie_s + 0.002), **matches) == "a"


def test_a_slow_tier_is_worth_nothing() -> None:
    """Loading takes as long as computing: a, which holds the prefix in host memory, is no better than the
    less busy b, and its prediction says that nothing is loaded."""
    loads = {Tier.HOST: LoadCost(17.1 / 9000 + 1e-6)}
    host = view("a", prefill=COST, loads=loads, in_flight=1)
    matches = {"a": PrefixMatch(0, 9000, 9000)}
    assert chosen(host, view("b", prefill=COST), **matches) == "b"
    assert predict(query(PROMPT), host, matches["a"]).match == PrefixMatch()


def test_answers_that_run_are_delayed_by_the_computing_and_not_by_the_overhead() -> None:
    """2.9 s of the rest delay each answer at a. That, with the 3.4 s to the first token, is less than
    computing all elsewhere as long as there are few of them; with one more it is more."""
    idle, each_s = view("b", prefill=COST), 2.9
    few = int((LIMIT_S - REST_S) / each_s)
    assert few * each_s + REST_S < LIMIT_S < (few + 1) * each_s + REST_S
    assert chosen(view("a", prefill=COST, decoding=few, in_flight=few), idle, a=on_device(9000)) == "a"
    few += 1
    assert chosen(view("a", prefill=COST, decoding=few, in_flight=few), idle, a=on_device(9000)) == "b"


def test_those_that_wait_before_a_prompt_are_delayed_by_it_as_answers() -> None:
    """When the prompt is computed, a queue that was before it is being answered: it is no empty engine that
    a long prompt should be sent to. What sets an engine apart passes meanwhile:
    after as long as answers mostly run, all but 1/e of how much busier it is than the fleet."""
    short = PrefillCost(1e-3)
    asked = query(range(1000))
    waiting = view("a", prefill=short, queued=8, in_flight=8)
    running = view("b", prefill=short, decoding=8, in_flight=8)
    one, other = (predict(asked, engine, PrefixMatch()).imposed_s for engine in (waiting, running))
    assert one == other == 8.0
    ending = replace(view("c", prefill=short, queued=4000, decoding=8, in_flight=8), answer_s=4.0)
    idle = view("d", prefill=short)
    imposed_s = predict_all(asked, [ending, idle], {})[ending.id].imposed_s
    assert imposed_s == pytest.approx(4 + 4 / math.e)


def test_a_long_prompt_is_not_sent_to_wait_for_others_answers_to_end() -> None:
    """Two engines answer alike many, and one of them has a long queue. A prompt that holds up many holds up
    as many after the queue as before it, since others come meanwhile: there is nothing to wait for."""
    busy = {"decoding": 20, "in_flight": 20}
    free, full = (
        replace(queued(name, wait_s, **busy), answer_s=5.0) for name, wait_s in (("a", 0.0), ("b", 100.0))
    )
    assert chosen(free, full) == "a"


def test_the_more_wait_the_more_computing_less_is_worth() -> None:
    """a holds the prefix and has a queue that takes as long as computing all on the idle b would, and a
    little more than a tie. With nobody else waiting b is chosen; when prompts wait all over the fleet, each
    second of computing delays those to come, and a is."""
    queue_s = LIMIT_S - REST_S + 0.1
    holder = queued("a", queue_s)
    fleet = [
        holder,
        view("b", prefill=COST),
        *(view(f"c{n}", prefill=COST, in_flight=9, queued=99_999) for n in range(2)),
    ]
    none_wait = [replace(engine, num_decoding=engine.num_in_flight) for engine in fleet]
    assert chosen(*none_wait, a=on_device(9000)) == "b"
    assert chosen(*fleet, a=on_device(9000)) == "a"
    later = predict_all(query(PROMPT), fleet, {EngineId("a"): on_device(9000)})[holder.id].later_s
    assert later == pytest.approx(LATER_PER_WAITING * 18 / 4 * 2.9)


def delayed_s(num_decoding: int, num_tokens: int, budget: int) -> float:
    """By how much a prompt delays all running answers together, on the engine model of an H100."""
    shape = EngineShape(
        256, 1000, max_num_batched_tokens=budget, max_model_len=20_000, kv_bytes_per_token=KV_BYTES_PER_TOKEN
    )
    asks = [Ask((number, *range(499)), 120) for number in range(num_decoding)]
    prompt = Ask((-1, *range(num_tokens - 1)), 1, delay_s=0.015 * num_decoding + 0.2)
    alone = VirtualEngine(shape, H100_8B).play(asks)
    beside = VirtualEngine(shape, H100_8B).play([*asks, prompt])
    return sum(late.token_s[-1] - early.token_s[-1] for early, late in zip(alone, beside[:-1], strict=True))


@pytest.mark.parametrize("budget", [2048, 8192])
@pytest.mark.parametrize("num_decoding", [1, 16])
@pytest.mark.parametrize(("num_tokens", "most_off"), [(500, 0.5), (2000, 0.1), (10_000, 0.1)])
def test_the_predicted_delay_is_that_of_the_engine_model(
    num_tokens: int, most_off: float, num_decoding: int, budget: int
) -> None:
    """Under chunked prefill, whatever the size of chunks: within a tenth for prompts that matter; those of a
    few hundred tokens, which cost their neighbours a hundredth of a second, are overstated by up to half."""
    kind = EngineType("", "", "", "", 256, KV_BYTES_PER_TOKEN, budget)
    cost = prefill_prior(CostFile(kind, Measured("", "", 0.0), H100_8B))
    engine = view("a", prefill=cost, decoding=num_decoding, in_flight=num_decoding)
    predicted_s = predict(query(range(num_tokens)), engine, PrefixMatch()).imposed_s
    assert predicted_s == pytest.approx(delayed_s(num_decoding, num_tokens, budget), rel=most_off)
