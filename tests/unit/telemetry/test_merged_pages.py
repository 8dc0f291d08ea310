"""The metrics of several workers as one page."""

from prometheus_client.parser import text_string_to_metric_families

from anbar.adapters.telemetry.merged_pages import ADDED, LEAST, Totals, WorkersPage
from anbar.adapters.telemetry.router_metrics import ENGINE_GAUGES, FLEET_GAUGES

PAGE = """# HELP anbar_router_requests_total Requests.
# TYPE anbar_router_requests_total counter
anbar_router_requests_total{{engine="a b\\\\"}} {count}
# HELP anbar_router_ttft_seconds First tokens.
# TYPE anbar_router_ttft_seconds histogram
anbar_router_ttft_seconds_bucket{{le="0.1"}} {count}
anbar_router_ttft_seconds_bucket{{le="+Inf"}} {count}
anbar_router_ttft_seconds_count {count}
anbar_router_ttft_seconds_sum 0.5
# HELP anbar_router_in_flight_requests Now.
# TYPE anbar_router_in_flight_requests gauge
anbar_router_in_flight_requests{{engine="a"}} 2.0
# HELP anbar_router_decoding_requests Now, of all routers.
# TYPE anbar_router_decoding_requests gauge
anbar_router_decoding_requests{{engine="a"}} {count}
# HELP anbar_router_kv_stream_connected Whether.
# TYPE anbar_router_kv_stream_connected gauge
anbar_router_kv_stream_connected{{engine="a"}} {connected}
"""


def page(count: float, connected: float = 1.0) -> bytes:
    return PAGE.format(count=count, connected=connected).encode()


def values(text: bytes) -> dict[str, float]:
    families = text_string_to_metric_families(text.decode())
    return {s.name + "".join(s.labels.values()): s.value for f in families for s in f.samples}


def test_pages_add_up() -> None:
    """Counters, buckets and own gauges are added; of what all see alike the greatest or the least is
    taken."""
    found = values(Totals((page(3.0), page(5.0, connected=0.0))).render())
    assert found["anbar_router_requests_totala b\\"] == 8.0
    assert found["anbar_router_ttft_seconds_bucket0.1"] == 8.0
    assert found["anbar_router_ttft_seconds_sum"] == 1.0
    assert found["anbar_router_in_flight_requestsa"] == 4.0
    assert found["anbar_router_decoding_requestsa"] == 5.0
    assert found["anbar_router_kv_stream_connecteda"] == 0.0


def test_one_page_is_itself() -> None:
    """Merging changes neither names nor types nor help."""
    assert Totals((page(3.0),)).render() == page(3.0)


def test_no_sum_goes_down_when_a_worker_ends() -> None:
    """What it had counted stays, its gauges do not, and its successor's counts come on top."""
    found = WorkersPage()
    found.heard(0, page(3.0))
    found.heard(1, page(5.0))
    assert values(found.render())["anbar_router_requests_totala b\\"] == 8.0
    for _ in range(2):
        found.gone(1)
        assert values(found.render())["anbar_router_requests_totala b\\"] == 8.0
        assert values(found.render())["anbar_router_in_flight_requestsa"] == 2.0
    found.heard(1, page(1.0))
    assert values(found.render())["anbar_router_requests_totala b\\"] == 9.0
    found.gone(1)
    assert values(found.render())["anbar_router_requests_totala b\\"] == 9.0
    assert values(found.render())["anbar_router_ttft_seconds_sum"] == 1.5


def test_named_gauges_exist() -> None:
    """A gauge that was renamed would silently be merged in another way."""
    assert ENGINE_GAUGES.keys() | FLEET_GAUGES.keys() >= (ADDED | LEAST)
