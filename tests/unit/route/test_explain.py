"""Why an engine was chosen or dropped, from what was known when it was."""

from random import Random

import pytest

from anbar.core.cost import PrefillCost
from anbar.core.errors import AnbarError
from anbar.core.fleet import EngineState, EngineView, PrefixMatch
from anbar.core.ids import EngineId, RequestId
from anbar.core.request import RouteQuery
from anbar.route.explain import Decision, Mode, candidates_of, note_decision
from anbar.route.filters import Verdict, candidates, verdict
from anbar.route.policies import PredictedTtft
from anbar.route.predict import LATER_PER_WAITING

QUERY = RouteQuery(RequestId("r"), "m", tuple(range(100)), 100)


def engine(name: str, state: EngineState = EngineState.READY, **changed: object) -> EngineView:
    values: dict[str, object] = {
        "id": EngineId(name),
        "state": state,
        "models": frozenset({"m"}),
        "block_size": 10,
        "max_model_len": 1000,
        "prefill": PrefillCost(1e-3),
    }
    return EngineView(**values | changed)  # type: ignore[arg-type]  # the keys are the fields


FLEET = (
    (engine("able"), Verdict.ABLE),
    (engine("starting", EngineState.STARTING), Verdict.STARTING),
    (engine("sick", EngineState.UNHEALTHY), Verdict.UNHEALTHY),
    (engine("leaving", EngineState.DRAINING), Verdict.DRAINING),
    (engine("other", models=frozenset({"n"})), Verdict.OTHER_MODEL),
    (engine("new", EngineState.STARTING, models=frozenset()), Verdict.NOT_PROBED),
    (engine("short", max_model_len=100), Verdict.TOO_LONG),
    (engine("short-sick", EngineState.UNHEALTHY, max_model_len=100), Verdict.TOO_LONG),
)


def test_each_filter_says_what_it_dropped_and_why() -> None:
    """One engine for each rule; of two rules the one that lasts is named."""
    assert [(view.id, verdict(QUERY, view)) for view, _ in FLEET] == [(v.id, want) for v, want in FLEET]


def test_candidates_are_the_engines_with_that_verdict() -> None:
    """What policies choose from and what explanations say cannot differ, whatever the fleet."""
    rng = Random(7)
    for _ in range(200):
        fleet = [view for view, _ in FLEET if rng.random() < 0.5]
        able = [view for view in fleet if verdict(QUERY, view) is Verdict.ABLE]
        try:
            found = candidates(QUERY, fleet)
        except AnbarError:
            found = []
        assert found == sorted(able, key=lambda view: view.id)


def decided(degraded: dict[EngineId, str], note: str = "") -> Decision:
    busy = engine("a", num_decoding=2, num_in_flight=3, queued_prefill_tokens=50)
    holder = engine("b", num_decoding=1, num_in_flight=1)
    sick = engine("c", EngineState.UNHEALTHY)
    views = [sick, busy, holder]
    matches = {EngineId("b"): PrefixMatch(40, 60, 80)}
    route = PredictedTtft(Random(0)).decide(QUERY, views, matches)
    return note_decision(QUERY, note, views, degraded, route)


def test_parts_add_up_to_the_score_that_was_compared() -> None:
    """The choice comes first, then the fallback, then what was dropped; parts are those of the cost model."""
    b, a, c = candidates_of(decided({}))
    assert (b.engine.id, b.place, a.engine.id, a.place, c.engine.id, c.place) == ("b", 1, "a", 2, "c", 0)
    assert a.prediction is not None
    assert b.prediction is not None
    assert a.prediction.wait_s == pytest.approx(0.05)
    assert a.prediction.prefill_s == pytest.approx(0.1)
    assert a.imposed_s == pytest.approx(0.3)
    assert a.prediction.later_s == pytest.approx(LATER_PER_WAITING / 2 * 0.1)
    assert a.score_s == pytest.approx(0.15 + 0.3 + a.prediction.later_s)
    assert b.load_host_s == pytest.approx(0.05 * 1e-3 * 20)
    assert b.load_shared_s == pytest.approx(0.1 * 1e-3 * 20)
    assert b.load_host_s + b.load_shared_s == pytest.approx(b.prediction.load_s)
    assert b.score_s < a.score_s
    assert (c.prediction, c.verdict) == (None, Verdict.UNHEALTHY)


def test_the_mode_says_how_well_each_cache_was_known() -> None:
    """Per engine; a prompt without tokens was looked up nowhere, whatever the engines publish."""
    modes = {c.engine.id: (c.mode, c.mode_reason) for c in candidates_of(decided({EngineId("a"): "no_kv"}))}
    assert modes["a"] == (Mode.APPROXIMATE, "no_kv")
    assert modes["b"] == (Mode.PRECISE, "")
    blind = candidates_of(decided({EngineId("a"): "no_kv"}, note="images"))
    assert {(c.mode, c.mode_reason) for c in blind} == {(Mode.LOAD_ONLY, "images")}


def test_nothing_of_the_prompt_is_kept() -> None:
    """A kept decision has no token of its prompt, so that a thousand of them are small."""
    query = RouteQuery(RequestId("r"), "m", (424242, 424243), 2)
    assert "42424" not in repr(note_decision(query, "", [engine("a")], {}, None))
