"""Admission: bounded queues, an objective that is held, and a time to come again that is true."""

from hypothesis import given
from hypothesis import strategies as st

from anbar.core.cost import PrefillCost
from anbar.core.fleet import EngineState, EngineView, Prediction
from anbar.core.ids import EngineId
from anbar.route.admission import AdmissionConfig, seconds_to_wait

SECONDS = st.floats(0, 100)


def engine(
    name: str, waiting: int = 0, state: EngineState = EngineState.READY, tokens: int = 0
) -> EngineView:
    return EngineView(
        id=EngineId(name),
        state=state,
        models=frozenset({"m"}),
        block_size=16,
        max_model_len=1000,
        prefill=PrefillCost(a_s_per_token=0.01),
        queued_prefill_tokens=tokens,
        num_decoding=3,
        num_in_flight=3 + waiting,
    )


def wait(config: AdmissionConfig, *pairs: tuple[EngineView, Prediction]) -> float:
    return seconds_to_wait(config, [view for view, _ in pairs], {view.id: made for view, made in pairs})


@given(st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=5), st.floats(0.1, 50))
def test_time_to_come_again_is_true(parts: list[tuple[float, float, float]], slo_s: float) -> None:
    """Refused only when no engine meets the objective; after the seconds that were named, and not a moment
    sooner, the same request is taken on."""
    config = AdmissionConfig(slo_ttft_s=slo_s)

    def after(seconds: float) -> float:
        made = [
            (engine(str(index)), Prediction(wait_s=max(0.0, waits - seconds), load_s=load, prefill_s=prefill))
            for index, (waits, load, prefill) in enumerate(parts)
        ]
        return wait(config, *made)

    refused_s = after(0.0)
    in_time = any(sum(part) <= slo_s for part in parts)
    assert not (in_time and refused_s > 1e-9)
    assert after(refused_s) <= 1e-9
    if refused_s > 0.01:
        assert after(0.99 * refused_s) > 0
        assert not in_time


def test_own_work_is_no_reason_to_refuse() -> None:
    """A prompt that takes a minute by itself, with an objective of one second: taken on by an idle engine,
    and by one whose queue is shorter than half a second."""
    config = AdmissionConfig(slo_ttft_s=1.0)
    for wait_s, refused_s in ((0.0, 0.0), (0.5, 0.0), (2.5, 2.0)):
        assert wait(config, (engine("a"), Prediction(wait_s=wait_s, prefill_s=60.0))) == refused_s


def test_full_queue() -> None:
    """Four may wait: the fifth is refused until one of them has left, whatever is predicted; those whose
    answers have begun do not count."""
    config = AdmissionConfig(max_waiting=4)
    idle = engine("b"), Prediction()
    assert wait(config, (engine("a", waiting=3), Prediction()), idle) == 0.0
    assert wait(config, (engine("a", waiting=4, tokens=800), Prediction(wait_s=8.0)), idle) == 2.0
    assert wait(config, (engine("a", waiting=4), Prediction()), idle) > 0.0


def test_engines_that_are_not_asked_do_not_count() -> None:
    """A queue on an engine that is down, or that serves another model, fills nothing."""
    config = AdmissionConfig(max_waiting=2, slo_ttft_s=1.0)
    down = engine("down", waiting=50, state=EngineState.UNHEALTHY), Prediction(wait_s=99.0)
    assert wait(config, down) == 0.0
    assert (
        seconds_to_wait(config, [engine("other", waiting=50), engine("a")], {EngineId("a"): Prediction()})
        == 0
    )
