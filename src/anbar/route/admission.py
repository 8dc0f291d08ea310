"""Whether a request is taken on, or told when to come again: a queue that is too long helps nobody.

Two bounds. At most `max_waiting` requests wait for their first token on the engines of a model. And, where an
objective is set, a request is taken on only while some engine is predicted to begin its answer within
`slo_ttft_s`. What a request takes on an idle engine is its own matter and no reason to refuse it: where that
leaves less than half of the objective, half of it may be waited all the same.

When to come again is not a guess: a queue shrinks by one second a second, so the seconds that are too many
are the seconds until it is short enough, for a request like this one and if nobody else comes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anbar.core.fleet import EngineState, EngineView, Prediction
from anbar.core.ids import EngineId


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """`slo_ttft_s` None: as long as the queue is not full, everything is taken on."""

    max_waiting: int = 4096
    slo_ttft_s: float | None = None


def seconds_to_wait(
    config: AdmissionConfig, engines: Sequence[EngineView], predictions: Mapping[EngineId, Prediction]
) -> float:
    """0 when the request is taken on; else the seconds until one like it would be. `predictions` are those of
    the engines that may serve it."""
    if config.slo_ttft_s is None and sum([e.num_in_flight for e in engines]) < config.max_waiting:
        return 0.0
    able = [e for e in engines if e.id in predictions and e.state is EngineState.READY]
    if not able:
        return 0.0
    too_many_s = 0.0
    num_waiting = sum(engine.num_in_flight - engine.num_decoding for engine in able)
    if num_waiting >= config.max_waiting:
        too_many_s = min(_until_one_leaves_s(engine) for engine in able if _num_waiting(engine))
    if config.slo_ttft_s is None:
        return too_many_s
    late_s = min(_late_s(predictions[engine.id], config.slo_ttft_s) for engine in able)
    return max(too_many_s, late_s)


def _num_waiting(engine: EngineView) -> int:
    return engine.num_in_flight - engine.num_decoding


def _until_one_leaves_s(engine: EngineView) -> float:
    """The queue's mean share of one request: which of them is next is not known here. At least a moment,
    since the queue is full now whatever is predicted of it."""
    return max(engine.wait_s / _num_waiting(engine), 1e-3)


def _late_s(prediction: Prediction, slo_s: float) -> float:
    own_s = prediction.load_s + prediction.prefill_s
    return max(0.0, prediction.wait_s - max(slo_s - own_s, slo_s / 2))
