"""Metrics and log lines: what each event moves, and what never gets out."""

import io
import json
from dataclasses import replace as gauges_replace

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from anbar.adapters.telemetry import EventLog, RouterMetrics
from anbar.adapters.telemetry.gone_engines import KEPT_S
from anbar.core.clock import ManualClock
from anbar.core.fleet import EngineState
from anbar.core.ids import EngineId, RequestId
from anbar.core.outcome import (
    AttemptFailed,
    AttemptFailure,
    CostGauges,
    EngineGauges,
    EngineStateChanged,
    Event,
    FleetGauges,
    KvStreamGap,
    KvStreamRestarted,
    Outcome,
    PrefillEnded,
    RequestFinished,
    RequestMalformed,
    SupervisorCaught,
    TrustChanged,
)

E0 = EngineId("e0")
FINISHED = RequestFinished(
    request_id=RequestId("r1"),
    endpoint="/v1/completions",
    model="m",
    outcome=Outcome.OK,
    status=200,
    engine=E0,
    stream=True,
    num_prompt_tokens=100,
    num_output_tokens=7,
    predicted_cached_tokens=64,
    reported_cached_tokens=48,
    ttft_s=0.2,
    e2e_s=1.5,
    tokenize_s=0.001,
    num_chunks=7,
    mean_gap_s=0.02,
    max_gap_s=0.3,
)
COSTS = CostGauges(0.01, 2e-4, 3e-9, 0.2, 4e-5, 5e-5)
GAUGES = FleetGauges(
    engines=(EngineGauges(E0, EngineState.READY, 1, 20, 3, 4, 5, True, 6, 0.5, costs=COSTS),),
    num_index_blocks=7,
    num_index_parked=8,
    num_index_orphans=9,
    num_index_rows=10,
    num_index_refused=11,
    num_connections=10,
    num_lost_log_lines=11,
    draining=False,
    config_generation=3,
    config_refused=True,
    num_config_needs_restart=2,
)


AT = {"at": "1970-01-01T00:00:12.346Z", "ts": 12.346}


def samples(metrics: RouterMetrics) -> dict[str, float]:
    page = metrics.render().decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def metrics() -> RouterMetrics:
    return RouterMetrics(CollectorRegistry(), lambda: GAUGES, lambda: 0.0)


@pytest.mark.parametrize(
    ("event", "moved"),
    [
        (
            FINISHED,
            "anbar_router_requests_total{class=default,engine=e0,model=m,outcome=ok,status=200,stream=true}",
        ),
        (FINISHED, "anbar_router_ttft_seconds_count{class=default,engine=e0,model=m}"),
        (FINISHED, "anbar_router_e2e_seconds_count{class=default,engine=e0,model=m,stream=true}"),
        (FINISHED, "anbar_router_stream_gap_max_seconds_count{class=default,engine=e0,model=m}"),
        (FINISHED, "anbar_router_tokenize_seconds_count{model=m}"),
        (replace(FINISHED, refusal="overloaded"), "anbar_router_refusals_total{reason=overloaded}"),
        (RequestMalformed(400), "anbar_router_malformed_total{status=400}"),
        (
            AttemptFailed(E0, AttemptFailure.TIMEOUT),
            "anbar_router_attempt_failures_total{engine=e0,failure=timeout}",
        ),
        (
            EngineStateChanged(E0, EngineState.READY, EngineState.UNHEALTHY, "refused"),
            "anbar_router_engine_state_changes_total{engine=e0,state=unhealthy}",
        ),
        (KvStreamGap(E0, 1), "anbar_router_kv_stream_gaps_total{engine=e0}"),
        (KvStreamRestarted(E0), "anbar_router_kv_stream_restarts_total{engine=e0}"),
        (SupervisorCaught("probe", "E"), "anbar_router_defects_total{error=E,where=probe}"),
    ],
)
def test_event_moves_its_metric(event: Event, moved: str) -> None:
    """Each event twice: its counter is 2."""
    page = metrics()
    page.on(event)
    page.on(event)
    assert samples(page)[moved] == 2


def test_series_of_an_engine_end_after_it_has_left() -> None:
    """It is gone: its series stay for ten minutes, then all of them end, and those of another engine, of the
    fleet and of requests without an engine do not. One that comes back in time is not forgotten; one that
    comes back later counts from zero."""
    clock, left = ManualClock(), EngineId("left")
    stays = gauges_replace(GAUGES.engines[0], num_reported=3)  # NaN is not equal to itself
    present = [stays, gauges_replace(stays, engine=left)]
    page = RouterMetrics(
        CollectorRegistry(), lambda: gauges_replace(GAUGES, engines=tuple(present)), clock.now_s
    )
    none = replace(FINISHED, engine=None, outcome=Outcome.NO_ENGINE)
    for event in (
        FINISHED,
        replace(FINISHED, engine=left),
        none,
        AttemptFailed(left, AttemptFailure.TIMEOUT),
        PrefillEnded(left, "computed", 1.0),
        TrustChanged(left, "precise", "rebuilding", 0.5),
    ):
        page.on(event)
    before = {name for name in samples(page) if "engine=left" in name}
    own = present.pop()
    clock.advance(1.0)
    gone = samples(page)
    assert {name for name in gone if "engine=left" in name} < before
    clock.advance(KEPT_S - 1.0)
    present.append(own)
    samples(page)
    present.pop()
    samples(page)
    clock.advance(KEPT_S - 1.0)
    assert samples(page) == gone
    clock.advance(1.0)
    kept = samples(page)
    assert kept == {name: value for name, value in gone.items() if "engine=left" not in name}
    assert any("engine=," in name for name in kept)
    present.append(own)
    page.on(replace(FINISHED, engine=left))
    (again,) = (
        value for name, value in samples(page).items() if "requests_total" in name and "engine=left" in name
    )
    assert again == 1


def test_tokens_are_counted_and_drift_shows() -> None:
    """Predicted 64, reported 48: both counted, and 16 tokens of over-prediction."""
    page = metrics()
    page.on(FINISHED)
    found = samples(page)
    assert found["anbar_router_prompt_tokens_total{class=default,engine=e0,model=m}"] == 100
    assert found["anbar_router_output_tokens_total{class=default,engine=e0,model=m}"] == 7
    assert found["anbar_router_predicted_cached_tokens_total{class=default,engine=e0,model=m}"] == 64
    assert found["anbar_router_reported_cached_tokens_total{class=default,engine=e0,model=m}"] == 48
    assert found["anbar_router_cached_tokens_over_prediction_sum{class=default,engine=e0,model=m}"] == 16


def test_unreported_tokens_are_not_compared() -> None:
    """An engine that does not report cached tokens adds nothing to either side."""
    page = metrics()
    page.on(
        RequestFinished(
            request_id=RequestId("r"),
            endpoint="/",
            model="m",
            outcome=Outcome.OK,
            status=200,
            engine=E0,
            predicted_cached_tokens=64,
        )
    )
    assert samples(page)["anbar_router_predicted_cached_tokens_total{class=default,engine=e0,model=m}"] == 0


def test_gauges_are_read_when_asked() -> None:
    """The page shows the fleet as it is at that moment; names have the prefix and no colon."""
    found = samples(metrics())
    assert found["anbar_router_in_flight_requests{engine=e0}"] == 1
    assert found["anbar_router_queued_prefill_tokens{engine=e0}"] == 20
    assert found["anbar_router_decoding_requests{engine=e0}"] == 3
    assert found["anbar_router_stale_connections_total{engine=e0}"] == 5
    assert found["anbar_router_prefill_seconds_per_token{engine=e0}"] == 2e-4
    assert found["anbar_router_shared_load_seconds_per_token{engine=e0}"] == 5e-5
    assert found["anbar_router_engine_state{engine=e0,state=ready}"] == 1
    assert found["anbar_router_engine_state{engine=e0,state=unhealthy}"] == 0
    assert found["anbar_router_index_blocks{}"] == 7
    assert found["anbar_router_lost_log_lines{}"] == 11
    assert all(name.startswith("anbar_") and ":" not in name for name in found)


def test_one_line_per_event() -> None:
    """JSON objects with time, generation of the configuration and kind; enums as their values."""
    sink = io.BytesIO()
    log = EventLog(sink, lambda: 12.3456)
    log.on(FINISHED)
    log.on(RequestMalformed(413))
    log.line("listening", {"port": 1})
    log.generation = 2
    log.line("empty", {})
    request, malformed, listening, empty = map(json.loads, sink.getvalue().splitlines())
    assert (request["ts"], request["event"], request["outcome"]) == (12.346, "request", "ok")
    assert (request["engine"], request["ttft_s"]) == ("e0", 0.2)
    assert malformed == {**AT, "config": 1, "event": "malformed", "status": 413}
    assert listening == {**AT, "config": 1, "event": "listening", "port": 1}
    assert empty == {**AT, "config": 2, "event": "empty"}


def test_lines_are_written_together() -> None:
    """Lines wait for the flush that the first of them asked for, with the times of their events."""
    sink, asked, now_s = io.BytesIO(), [], 1.0
    log = EventLog(sink, lambda: now_s, asked.append)
    log.on(RequestMalformed(400))
    now_s = 2.0
    log.on(RequestMalformed(413))
    assert (sink.getvalue(), len(asked)) == (b"", 1)
    asked.pop()()
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert [(line["ts"], line["status"]) for line in lines] == [(1.0, 400), (2.0, 413)]
    log.on(RequestMalformed(431))
    assert len(asked) == 1
    log.flush()
    log.flush()
    assert sink.getvalue().count(b"\n") == 3


def test_full_disk_loses_lines_and_nothing_else() -> None:
    """A sink that raises, or was closed, is counted."""

    class Full(io.BytesIO):
        def write(self, data: object, /) -> int:
            raise OSError(28, "No space left on device")

    log = EventLog(Full(), lambda: 0.0)
    log.on(FINISHED)
    assert log.num_lost == 1
    later: list[object] = []
    log = EventLog(Full(), lambda: 0.0, later.append)
    log.on(FINISHED)
    log.on(FINISHED)
    log.flush()
    assert log.num_lost == 2
    closed = io.BytesIO()
    closed.close()
    log = EventLog(closed, lambda: 0.0)
    log.on(FINISHED)
    assert log.num_lost == 1


def test_each_line_names_the_moment_and_the_configuration() -> None:
    """UTC to the millisecond, over the end of a second and of a day; a reload shows at once."""
    sink, moments = io.BytesIO(), iter([1.9994, 1.9996, 86399.9999, 1e9])
    log = EventLog(sink, lambda: next(moments))
    for _ in range(3):
        log.line("x", {})
    log.generation = 2
    log.line("x", {})
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert [(line["at"], line["config"]) for line in lines] == [
        ("1970-01-01T00:00:01.999Z", 1),
        ("1970-01-01T00:00:02.000Z", 1),
        ("1970-01-02T00:00:00.000Z", 1),
        ("2001-09-09T01:46:40.000Z", 2),
    ]
