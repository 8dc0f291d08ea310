"""What every policy must do, and what each is for."""

import math
import weakref
from array import array
from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from anbar.core.cost import LoadCost, PrefillCost
from anbar.core.errors import ConfigError, NoEngine, RequestError
from anbar.core.events import Tier
from anbar.core.fleet import EngineState, EngineView, PrefixMatch, Route
from anbar.core.ids import EngineId, RequestId
from anbar.core.request import RouteQuery
from anbar.route.contract import Sight
from anbar.route.policies import POLICIES, make_policy
from anbar.route.predict import LatePredictions, predict, predict_all

from .builders import query, view

PROMPT = [7] * 1000
STATES = st.sampled_from([EngineState.READY] * 3 + list(EngineState))
VIEWS = st.lists(
    st.builds(
        view,
        st.just("e"),
        state=STATES,
        models=st.sampled_from([("m",), ("m", "n"), ("n",)]),
        rate=st.sampled_from([100.0, 1000.0]),
        queued=st.sampled_from([0, 10, 5000]),
        decoding=st.integers(0, 3),
        in_flight=st.integers(0, 3),
        context=st.sampled_from([10, 100_000]),
    ),
    min_size=1,
    max_size=5,
).map(lambda views: [renamed(with_answers(entry), f"e{at}") for at, entry in enumerate(views)])


def with_answers(entry: EngineView) -> EngineView:
    """What is being answered is in flight, too: no engine has more answers than requests."""
    return replace(entry, num_in_flight=entry.num_in_flight + entry.num_decoding)


def renamed(entry: EngineView, name: str) -> EngineView:
    return replace(entry, id=EngineId(name))


def cached(**tokens: int) -> dict[EngineId, PrefixMatch]:
    """Tokens on the device of each engine."""
    return {EngineId(name): PrefixMatch(count, count, count) for name, count in tokens.items()}


def decide(
    name: str,
    views: list[EngineView],
    matches: Mapping[EngineId, PrefixMatch] | None = None,
    *,
    asked: RouteQuery | None = None,
    seed: int = 0,
) -> Route:
    return make_policy(name, Random(seed)).decide(asked or query(PROMPT), views, matches or {})


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(views=VIEWS, seed=st.integers(0, 9))
def test_only_able_engines_are_named_and_each_once(name: str, views: list[EngineView], seed: int) -> None:
    """Target and fallbacks are exactly the ready engines that serve the model and have the context; the same
    seed gives the same decision; the reason names the target."""
    able = {
        entry.id
        for entry in views
        if entry.state is EngineState.READY and "m" in entry.models and entry.max_model_len > 1000
    }
    matches = cached(e0=100, e1=900)
    if not able:
        with pytest.raises((NoEngine, RequestError)):
            decide(name, views, matches, seed=seed)
        return
    route = decide(name, views, matches, seed=seed)
    assert sorted([route.target, *route.fallbacks]) == sorted(able)
    assert route == decide(name, views, matches, seed=seed)
    assert route.policy == name
    assert route.target in route.reason
    assert route.predictions.keys() == able


@given(views=VIEWS)
def test_predictions_made_when_they_are_asked_for_are_the_same(views: list[EngineView]) -> None:
    """A policy that needs none for its choice says of each engine, in any order and as often as asked, what
    is predicted of all at once; what it keeps for that has no tokens."""
    matches = cached(e0=100, e1=900)
    late = LatePredictions(query(PROMPT), views, matches)
    assert dict(reversed(list(late.items()))) == predict_all(query(PROMPT), views, matches) == late
    assert late.get(EngineId("nobody")) is None
    tokens = array("I", PROMPT)
    asked = RouteQuery(RequestId("r"), "m", tokens, len(tokens))
    kept, tokens_kept = LatePredictions(asked, views, matches), weakref.ref(tokens)
    del tokens, asked
    assert len(kept) == len(views)
    assert tokens_kept() is None


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_who_is_to_blame_when_nobody_can(name: str) -> None:
    """An unknown model is the client's fault, as is a prompt longer than any context; an engine that is not
    ready, or has not been asked yet what it serves, is ours."""
    with pytest.raises(RequestError, match="'x' does not exist") as unknown:
        decide(name, [view("a")], asked=query(PROMPT, model="x"))
    assert (unknown.value.status, unknown.value.code) == (404, "model_not_found")
    with pytest.raises(
        RequestError, match=r"1000 tokens. .* contains 1000 tokens, which leaves no room"
    ) as long:
        decide(name, [view("a", context=1000), view("b", context=10)])
    assert (long.value.status, long.value.code) == (400, "context_length_exceeded")
    with pytest.raises(NoEngine, match="a is draining, b is unhealthy"):
        decide(name, [view("a", state=EngineState.DRAINING), view("b", state=EngineState.UNHEALTHY)])
    with pytest.raises(NoEngine, match="yet"):
        decide(name, [view("a", models=())], asked=query(PROMPT, model="x"))
    with pytest.raises(NoEngine):
        decide(name, [])


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_context_must_hold_the_prompt_and_one_token(name: str) -> None:
    """An engine whose context the prompt fills is passed over, since it could not answer with a single token;
    a prompt of unknown length may go anywhere, and any prompt to an engine that does not tell its context."""
    views = [view("a", context=1000), view("b", context=1001)]
    route = decide(name, views, asked=query(PROMPT))
    assert (route.target, route.fallbacks) == ("b", ())
    assert decide(name, [view("a", context=0)], asked=query(PROMPT)).target == "a"
    unknown = RouteQuery(query([]).request_id, "m", (), 5000)
    assert len(decide(name, views, asked=unknown).fallbacks) == 1


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(views=VIEWS, session=st.sampled_from(["", "s"]))
def test_every_policy_serves_without_tokens_and_matches(
    name: str, views: list[EngineView], session: str
) -> None:
    """A prompt that could not be tokenized, or whose tokens the policy does not want, is served by any engine
    that is able; nothing is predicted to be cached."""
    asked = RouteQuery(query([]).request_id, "m", (), 5000, session=session)
    able = [entry.id for entry in views if entry.state is EngineState.READY and "m" in entry.models]
    if able:
        route = decide(name, views, asked=asked)
        assert sorted([route.target, *route.fallbacks]) == sorted(able)
        assert all(prediction.match == PrefixMatch() for prediction in route.predictions.values())


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_has_its_name_and_says_what_it_looks_at(name: str) -> None:
    """The name in the file is the name in headers; what a policy does not look at changes nothing."""
    policy = make_policy(name, Random(0))
    assert policy.name == name
    if policy.sight is Sight.NOTHING:
        views = [view("a", in_flight=1), view("b", in_flight=1)]
        routes = [decide(name, views, matches, seed=3) for matches in ({}, cached(a=990), cached(b=990))]
        assert len({route.target for route in routes}) == 1


def test_random_takes_any() -> None:
    """Each of four engines is drawn, as first and as fallback, about as often as any other."""
    policy = make_policy("random", Random(1))
    routes = [policy.decide(query(PROMPT), [view(name) for name in "abcd"], {}) for _ in range(400)]
    for place in (0, 1, 2, 3):
        drawn = Counter([route.target, *route.fallbacks][place] for route in routes)
        assert set(drawn) == set("abcd")
        assert min(drawn.values()) > 60


def test_unknown_policy_names_the_allowed_ones() -> None:
    """A typo in the configuration is answered with what there is."""
    with pytest.raises(ConfigError, match=r"'fastest'.*least_loaded, .*, session"):
        make_policy("fastest", Random(0))


def test_round_robin_takes_turns() -> None:
    """Each of three engines gets every third request, fallbacks go on from there."""
    policy = make_policy("round_robin", Random(0))
    views = [view(name) for name in "cab"]
    routes = [policy.decide(query(PROMPT), views, {}) for _ in range(4)]
    assert [route.target for route in routes] == ["a", "b", "c", "a"]
    assert routes[1].fallbacks == ("c", "a")


def test_least_loaded_looks_at_load_alone() -> None:
    """Fewest in flight, then fewest tokens queued, whatever is cached."""
    views = [view("a", in_flight=2), view("b", in_flight=1, queued=9), view("c", in_flight=1)]
    route = decide("least_loaded", views, cached(a=990))
    assert (route.target, route.fallbacks) == ("c", ("b", "a"))


@pytest.mark.parametrize("name", ["least_loaded", "predicted_ttft"])
def test_ties_break_at_random(name: str) -> None:
    """Equal engines share the load, in an order that the random source decides."""
    policy = make_policy(name, Random(1))
    views = [view(name) for name in "abcd"]
    targets = Counter(policy.decide(query(PROMPT), views, {}).target for _ in range(400))
    assert set(targets) == set("abcd")
    assert min(targets.values()) > 50


def test_a_cached_prefix_wins_over_an_idle_engine() -> None:
    """900 of 1,000 tokens cached beat an empty engine, until the queue there takes longer than computing."""
    matches = cached(a=900)
    assert (
        decide("predicted_ttft", [view("a", in_flight=3, decoding=3, queued=500), view("b")], matches).target
        == "a"
    )
    assert (
        decide("predicted_ttft", [view("a", in_flight=3, decoding=3, queued=1050), view("b")], matches).target
        == "b"
    )


def test_running_decodes_count() -> None:
    """A prefill delays every decode that runs there: a busy engine with a small head start loses."""
    views = [view("a", decoding=8, in_flight=8), view("b")]
    assert decide("predicted_ttft", views, cached(a=100)).target == "b"
    assert decide("predicted_ttft", views, cached(a=950)).target == "a"


def test_a_prefix_in_the_shared_store_goes_to_the_least_busy() -> None:
    """Every engine can load it, so what each has to do decides."""
    matches = {EngineId(name): PrefixMatch(0, 0, 900) for name in "abc"}
    views = [view("a", in_flight=2), view("b", in_flight=1), view("c", in_flight=3)]
    assert decide("predicted_ttft", views, matches).target == "b"


def test_reasons_are_sentences_with_numbers() -> None:
    """A person can see from the text alone why the engine was chosen."""
    matches = {EngineId("a"): PrefixMatch(600, 800, 900)}
    reason = decide("predicted_ttft", [view("a", queued=50), view("b")], matches).reason
    assert reason.startswith("a: first token in 0.170 s (wait 0.050, load 0.020, prefill 0.100)")
    assert (
        "900 of 1000 tokens cached (600 on the device, 200 in host memory, 100 in the shared store)" in reason
    )
    assert "next best of 1 other(s) is b: first token in 1.000 s" in reason
    assert "delaying" not in reason
    busy = decide("predicted_ttft", [view("a", decoding=3, in_flight=4)], matches).reason
    assert (
        "4 in flight, delaying others' answers by 0.400 s in all and prompts to come by 0.200 s; it is"
        in busy
    )


@given(VIEWS, st.integers(0, 4), st.integers(0, 999), st.integers(0, 999), st.integers(0, 5))
def test_more_cached_is_never_less_attractive(
    views: list[EngineView], at: int, less: int, more: int, seed: int
) -> None:
    """An engine that is chosen stays chosen when more of the prompt is cached on it."""
    low, high = sorted((less, more))
    others = cached(e0=300, e1=500, e2=0)
    name = f"e{at}"
    try:
        before = decide("predicted_ttft", views, others | cached(**{name: low}), seed=seed)
    except (NoEngine, RequestError):
        return
    if before.target == name:
        assert decide("predicted_ttft", views, others | cached(**{name: high}), seed=seed).target == name


def test_a_tier_is_used_only_where_it_is_faster() -> None:
    """A store slower than computing is left out of the prediction; one of unknown cost is used, at a
    fraction of the time of computing."""
    slow, fast = LoadCost(1.0), LoadCost(1e-6, 0.001)
    match = PrefixMatch(100, 500, 900)
    engine = EngineView(
        EngineId("a"),
        EngineState.READY,
        frozenset("m"),
        2,
        9999,
        PrefillCost(0.001),
        loads={Tier.HOST: fast, Tier.SHARED: slow},
    )
    host_only = predict(query(PROMPT), engine, match)
    assert host_only.match == PrefixMatch(100, 500, 500)
    assert math.isclose(host_only.load_s, 0.001 + 400 * 1e-6)
    assert math.isclose(host_only.prefill_s, 0.5)
    unknown = predict(query(PROMPT), view("a"), match)
    assert unknown.match == match
    assert math.isclose(unknown.load_s, 0.001 * (400 * 0.05 + 400 * 0.1))
    on_device = predict(query(PROMPT), view("a"), PrefixMatch(900, 900, 900))
    assert (
        on_device.ttft_s
        < unknown.ttft_s
        < predict(query(PROMPT), view("a"), PrefixMatch(100, 100, 100)).ttft_s
    )


def test_the_last_token_of_a_full_hit_is_computed() -> None:
    """A prompt that is cached in full still costs the computation of one token."""
    full = predict(query(PROMPT), view("a"), PrefixMatch(998, 1000, 1000))
    assert math.isclose(full.prefill_s, 0.001)


def test_among_equal_scores_the_device_holder_comes_first() -> None:
    """A short common beginning in a long prompt: a few percent of the score, but it need not be moved or kept
    twice, so its holder is chosen although the other engine is less busy and could load it."""
    matches = {EngineId("a"): PrefixMatch(20, 20, 20), EngineId("b"): PrefixMatch(0, 0, 20)}
    views = [view("a", queued=10), view("b")]
    for seed in range(5):
        assert decide("predicted_ttft", views, matches, seed=seed).target == "a"
