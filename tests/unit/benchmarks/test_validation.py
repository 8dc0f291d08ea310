"""What the validation report says, as far as it can be computed in seconds; and the report's own parts."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.validation import curves, fitting, hit_rates, oracles, page, plot, published, table
from benchmarks.validation.drive import Clients, Prompt

from anbar.core.cost import EngineCost, TokenCurve
from anbar.sim.engine.engine import Engine
from anbar.sim.engine.pace import StepCost
from anbar.sim.engine.shape import EngineShape

DELAY, FRONT_S = 0.7, 0.0134
"""What the fit finds by running the engine model, which takes it half a minute."""


class Known:
    """Answers the fit's questions with what it found."""

    def worst_throughput(self, cost: EngineCost) -> float:
        return abs(cost.copy_delay - DELAY)

    def load_offset_s(self, cost: EngineCost) -> float:
        return FRONT_S


def fitted() -> EngineCost:
    """Of Llama-3.1-8B on an H100, from the published curves and the profiles."""
    return fitting.llama(Known()).llama


def test_the_fit_is_the_one_of_the_report() -> None:
    """The closed forms, and what the engine model said."""
    there = page.result()["setup"]["fitted"]
    found = fitting.llama(Known())
    assert found.scale == pytest.approx(there["scale"])
    assert found.llama.copy_delay == there["llama"]["copy_delay"]
    assert found.llama.front_s == pytest.approx(there["llama"]["front_s"], abs=0.0001)
    assert found.llama.prefill_s_per_token2 == pytest.approx(
        there["llama"]["prefill_s_per_token2"], rel=0.001
    )


def test_time_to_first_token_is_within_a_tenth_at_every_length() -> None:
    """vLLM's curves of Llama-3.1-8B on an H100, computed and loaded from host RAM, 10K to 100K tokens."""
    cost = fitted()
    points = [*curves.compute_curve(cost), *curves.load_curve(cost)]
    assert len(points) == 20
    assert max(abs(point.error) for point in points) < 0.10


def test_throughput_is_within_a_tenth_at_every_hit_rate() -> None:
    """vLLM's curve of prompts of 512 tokens, with a host tier and without."""
    points = curves.hit_curve(fitted(), 300)
    assert len(points) == 12
    assert max(abs(point.error) for point in points) < 0.10


@pytest.mark.parametrize("trace", hit_rates.TRACES)
def test_hit_rates_are_those_of_a_simulated_cache(trace: str) -> None:
    """Within 0.1 point of an LRU cache that was simulated elsewhere, at four sizes."""
    rates = hit_rates.against_simulation(trace)
    assert [rate.capacity for rate in rates] == [1e6, 3e6, 1e7, 2e7]
    assert max(abs(rate.other - rate.ours) for rate in rates) < 0.001


def test_the_later_half_is_counted_after_the_earlier_one_has_filled_the_cache() -> None:
    """With room for all, the hit rate that `kvcache-simulator` gives: 39.8 %."""
    assert hit_rates.second_half("conversation", [200_000]) == [pytest.approx(0.3981, abs=0.0001)]


def test_a_sample_of_a_hundredth_is_within_a_point_on_average() -> None:
    """Of the whole public chat trace; at its worst it is not, which the report says."""
    sample = hit_rates.sampled("conversation", 0.01)
    assert sample.followed == pytest.approx(0.01, abs=0.001)
    assert sample.mean < 0.01
    assert sample.mean < sample.worst


def small_engine(cost: EngineCost) -> Engine:
    shape = EngineShape(block_size=16, num_blocks=100, max_model_len=1024)
    return Engine(shape, StepCost(cost))


def test_clients_send_the_next_request_when_they_have_their_answer() -> None:
    """Two clients, three requests of 10 steps of a second each: the third begins when the first two end."""
    clients = Clients([small_engine(EngineCost(TokenCurve(((1, 1.0), (2, 1.0)))))], lambda _: 0, 2, 0.5)
    served = clients.run(iter([Prompt(number, number, 16, 32, 10) for number in range(3)]))
    assert [(one.sent_s, one.first_s, one.last_s) for one in served] == [
        (0.0, 1.5, 10.5),
        (0.0, 1.5, 10.5),
        (10.5, 12.0, 21.0),
    ]


def test_strides_change_nothing_but_the_time_it_takes() -> None:
    """Three engines with answers of many lengths: the same times, with strides of many steps and with single
    ones."""
    cost = EngineCost(TokenCurve(((1, 1.0), (2, 1.0))))

    def play(*, strides: bool) -> list[tuple[int, float, float]]:
        engines = [small_engine(cost) for _ in range(3)]
        for engine in engines if not strides else []:
            engine.scheduler.max_repeats = lambda _: 1  # type: ignore[method-assign]
        clients = Clients(engines, lambda p: p.number % 3, 5, 0.5, 1.0)
        prompts = [Prompt(number, number % 4, 32, 48, 20 + number * 7 % 40) for number in range(30)]
        return [(one.prompt.number, one.first_s, one.last_s) for one in clients.run(iter(prompts))]

    assert sorted(play(strides=True)) == sorted(play(strides=False))


def test_prompts_of_a_group_share_their_beginning_alone() -> None:
    """The second of a group finds the shared blocks, one of another group nothing."""
    asked = [Prompt(0, 7, 32, 64, 1), Prompt(1, 7, 32, 64, 1), Prompt(2, 8, 32, 64, 1)]
    served = Clients([small_engine(EngineCost())], lambda _: 0, 1).run(iter(asked))
    assert [one.num_device for one in served] == [0, 32, 0]


def test_the_router_of_the_table_prefers_where_it_sent_a_group_before() -> None:
    """Until others have much less to do."""
    engines = [small_engine(EngineCost(TokenCurve(((1, 1.0), (2, 1.0))))) for _ in range(2)]
    router = table.Router(engines, offloads=False)
    prompt = Prompt(0, 3, 16, 32, 10)
    first = router.choose(prompt)
    assert [router.choose(prompt) for _ in range(5)] == [first] * 5
    for number in range(3):
        engines[first].add(Prompt(number, 3, 16, 512, 10).request(16))
    engines[first].start_step(0.0, 0.0)
    assert router.choose(prompt) != first


def test_a_gain_is_against_the_same_prompts_without_offload() -> None:
    """And the verdicts agree when both are worth it, or neither is."""
    rows = list(published.table())
    model = {"baseline": 100.0, "native": 120.0, "lmcache": 101.0}
    predicted = [table.Predicted(row, model[row.config], 0.0, 0.0, 0.0, 0.0) for row in rows]
    found = {(gain.scenario, gain.config): gain for gain in table.gains(predicted)}
    assert found["high_30k", "native"].published == pytest.approx(46751.0 / 38534.8 - 1)
    assert found["high_30k", "native"].model == pytest.approx(0.2)
    assert [gain.agrees for gain in found.values()] == [True, False, False, True]


def test_why_an_installation_failed_is_said_in_a_line() -> None:
    """Of a placeholder what it says itself, else pip's error."""
    said = "a\nThis is a special placeholder package which downloads\na real wheel\n\nb"
    assert oracles.why(said) == "This is a special placeholder package which downloads a real wheel"
    assert oracles.why("Collecting x\nERROR: no such x\n") == "ERROR: no such x"


def test_a_chart_draws_each_point_where_it_is() -> None:
    """A line from corner to corner, and a dot at the right end."""
    lines = [plot.Line("a", [(0, 0), (10, 20)]), plot.Line("b", [(10, 20)], dots=True)]
    tree = ET.fromstring(plot.Chart("A < B", "x", "y", lines).svg())
    name = "{http://www.w3.org/2000/svg}"
    (line,), (dot,) = tree.findall(f"{name}polyline"), tree.findall(f"{name}circle")
    start, end = (tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split())
    assert start[0] < end[0]
    assert start[1] > end[1]
    assert (float(dot.attrib["cx"]), float(dot.attrib["cy"])) == end


@pytest.mark.parametrize(("step", "expected"), [(0.03, 0.05), (1.0, 1.0), (700.0, 1000.0)])
def test_ticks_are_round(step: float, expected: float) -> None:
    """1, 2 or 5 times a power of ten."""
    assert plot.nice(step) == pytest.approx(expected)


def written() -> Iterator[tuple[str, str]]:
    yield from page.files(page.result()).items()


def test_the_page_is_what_the_last_result_says() -> None:
    """The page and its plots in docs/concepts."""
    for name, text in written():
        assert (page.DOCS / name).read_text(encoding="utf-8") == text, (
            f"{name}: make bench NAME=sim-validation"
        )


def test_the_page_says_what_is_off() -> None:
    """A change of the result is seen there."""
    content: dict[str, Any] = json.loads(json.dumps(page.result()))
    content["setup"]["misses"] = ["something: far off"]
    assert "- something: far off" in page.files(content)["validation.md"]
