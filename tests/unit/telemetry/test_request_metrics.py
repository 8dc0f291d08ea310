"""What finished requests move: streams and whole answers, predictions, and labels that stay few."""

from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from anbar.adapters.telemetry.request_metrics import MAX_MODELS, RequestMetrics
from anbar.core.ids import EngineId, RequestId
from anbar.core.outcome import GAP_BUCKETS_S, Outcome, RequestFinished

STREAM = RequestFinished(
    request_id=RequestId("r"),
    endpoint="/v1/completions",
    model="m",
    outcome=Outcome.OK,
    status=200,
    engine=EngineId("e"),
    stream=True,
    num_prompt_tokens=100,
    num_output_tokens=5,
    predicted_cached_tokens=64,
    reported_cached_tokens=80,
    predicted_ttft_s=0.1,
    ttft_s=0.3,
    engine_ttft_s=0.15,
    e2e_s=2.0,
    num_chunks=4,
    gap_counts=[0] * 3 + [2] + [0] * 10 + [1],
    mean_gap_s=5.0,
    max_gap_s=14.96,
)
WHOLE = msgspec.structs.replace(
    STREAM, stream=False, num_chunks=1, gap_counts=[], mean_gap_s=0.0, max_gap_s=0.0
)


def page_of(*events: RequestFinished) -> dict[str, float]:
    registry = CollectorRegistry()
    metrics = RequestMetrics(registry)
    for event in events:
        metrics.on(event)
    page = generate_latest(registry).decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("model", "engine", "class")}
            text = ",".join(f"{k}={v}" for k, v in sorted(labels.items()))
            found[f"{sample.name.removeprefix('anbar_router_')}{{{text}}}"] = sample.value
    return found


def changed(event: RequestFinished, **values: Any) -> RequestFinished:
    return msgspec.structs.replace(event, **values)


def test_a_stream_and_a_whole_answer_are_both_measured() -> None:
    """Of both the end; of the stream alone what only a stream shows: first byte and times between chunks."""
    page = page_of(STREAM, WHOLE, WHOLE)
    assert page["requests_total{outcome=ok,status=200,stream=true}"] == 1
    assert page["requests_total{outcome=ok,status=200,stream=false}"] == 2
    assert page["e2e_seconds_count{stream=true}"] == 1
    assert page["e2e_seconds_count{stream=false}"] == 2
    assert (page["queue_seconds_count{}"], page["queue_seconds_sum{}"]) == (3, pytest.approx(0.45))
    assert (page["ttft_seconds_count{}"], page["ttft_seconds_sum{}"]) == (1, 0.3)
    assert page["prompt_tokens_total{}"] == 300
    assert page["output_tokens_total{}"] == 15
    assert page["cached_tokens_total{}"] == 240
    assert page["time_per_output_token_seconds_sum{}"] == pytest.approx(15.0 / 4)
    assert page["stream_gap_max_seconds_sum{}"] == 14.96


def test_a_stream_that_another_engine_went_on_with_is_no_measure_of_it() -> None:
    """The first token was another engine's: it is not compared with what was predicted of this one."""
    page = page_of(STREAM, changed(STREAM, continued=True))
    assert page["ttft_to_predicted_ratio_count{}"] == 1


def test_every_time_between_chunks_is_counted() -> None:
    """Two of 20 ms or less and one longer than all bounds, twice; cumulative, with a sum."""
    page = page_of(STREAM, STREAM)
    assert page["itl_seconds_bucket{le=0.01}"] == 0
    assert page["itl_seconds_bucket{le=0.02}"] == 4
    assert page["itl_seconds_bucket{le=10.0}"] == 4
    assert page["itl_seconds_bucket{le=+Inf}"] == page["itl_seconds_count{}"] == 6
    assert page["itl_seconds_sum{}"] == pytest.approx(30.0)
    assert len(STREAM.gap_counts) == len(GAP_BUCKETS_S) + 1


def test_times_that_the_engine_reports_are_known_of_whole_answers_too() -> None:
    """Without them nothing is claimed of an answer that is not a stream."""
    silent = page_of(WHOLE)
    assert "engine_ttft_seconds_count{}" not in silent or silent["engine_ttft_seconds_count{}"] == 0
    assert silent["ttft_to_predicted_ratio_count{}"] == 0
    assert silent["engine_itl_seconds_count{}"] == 0
    page = page_of(changed(WHOLE, reported_ttft_s=0.05, reported_queue_s=0.01, reported_itl_s=0.02))
    assert (page["engine_itl_seconds_count{}"], page["engine_itl_seconds_sum{}"]) == (1, 0.02)
    assert (page["engine_ttft_seconds_sum{}"], page["engine_queue_seconds_sum{}"]) == (0.05, 0.01)
    assert page["ttft_to_predicted_ratio_bucket{le=0.5}"] == 1
    assert page["ttft_to_predicted_ratio_bucket{le=0.25}"] == 0


@pytest.mark.parametrize(
    ("actual_s", "below", "above"),
    [(0.15, "1.25", "1.5"), (0.1, "0.9", "1.0"), (0.04, "0.25", "0.5"), (9.0, "11.0", "+Inf")],
)
def test_the_error_of_the_predicted_first_token_has_a_direction(
    actual_s: float, below: str, above: str
) -> None:
    """Half as long again is 1.5, on time 1, less than half below 0.5, and what is far off counts too."""
    page = page_of(changed(STREAM, engine_ttft_s=actual_s))
    assert page[f"ttft_to_predicted_ratio_bucket{{le={below}}}"] == 0
    assert page[f"ttft_to_predicted_ratio_bucket{{le={above}}}"] == 1


def test_failed_and_unpredicted_requests_say_nothing_of_predictions() -> None:
    """A client that went away, and a policy that predicted nothing."""
    gone = changed(STREAM, outcome=Outcome.CLIENT_GONE, status=499)
    page = page_of(gone, changed(STREAM, predicted_ttft_s=0.0))
    assert page["ttft_to_predicted_ratio_count{}"] == 0


def test_over_and_under_prediction_are_two_things() -> None:
    """16 tokens more than predicted, then 14 less: each shows where it belongs and nowhere else."""
    page = page_of(STREAM, changed(STREAM, reported_cached_tokens=50))
    assert page["cached_tokens_under_prediction_sum{}"] == 16
    assert page["cached_tokens_over_prediction_sum{}"] == 14
    assert page["predicted_cached_tokens_total{}"] == 128
    assert page["reported_cached_tokens_total{}"] == 130
    assert page_of(changed(STREAM, predicted_cached_tokens=None))["reported_cached_tokens_total{}"] == 0


def test_models_beyond_a_number_share_one_label() -> None:
    """An engine with a thousand adapters does not make a thousand series of each metric; those that came
    first keep their own."""
    registry = CollectorRegistry()
    metrics = RequestMetrics(registry)
    for number in range(1000):
        metrics.on(changed(STREAM, model=f"adapter-{number}"))
    metrics.on(changed(STREAM, model="adapter-0"))
    page = generate_latest(registry).decode()
    (requests,) = (f for f in text_string_to_metric_families(page) if f.name == "anbar_router_requests")
    counts = {s.labels["model"]: s.value for s in requests.samples if s.name.endswith("_total")}
    assert len(counts) == MAX_MODELS + 1
    assert (counts["adapter-0"], counts["other"]) == (2, 1000 - MAX_MODELS)


def test_cached_tokens_count_without_a_prediction() -> None:
    """A policy that looks up nothing: what the engine reports counts all the same, and is compared with
    nothing; an engine that reports none adds nothing."""
    page = page_of(
        changed(STREAM, predicted_cached_tokens=None), changed(STREAM, reported_cached_tokens=None)
    )
    assert page["cached_tokens_total{}"] == 80
    assert page["reported_cached_tokens_total{}"] == 0
