"""What live metrics tell, and what they do not."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest

from anbar.apps.advise.pressure import SNIPPET, read_pressure
from anbar.config.models import AnbarConfig
from anbar.core.errors import ConfigError

PAGE = """\
vllm:kv_cache_usage_perc{engine="0"} 0.97
vllm:num_requests_waiting{engine="0"} 4
vllm:num_requests_running{engine="0"} 12
vllm:num_preemptions_total{engine="0"} 30
vllm:request_success_total{finished_reason="stop"} 800
vllm:request_success_total{finished_reason="length"} 200
vllm:prefix_cache_queries_total 1000
vllm:prefix_cache_hits_total 250
"""
IDLE = "vllm:kv_cache_usage_perc 0.1\nvllm:num_requests_waiting 0\nvllm:num_preemptions_total 0\n"
PAGES = {"/metrics": PAGE, "/idle/metrics": IDLE, "/other/metrics": "up 1\n", "/bad/metrics": "{{{\n"}


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        address = urlsplit(self.path)
        text = PAGES.get(address.path, "")
        if address.path == "/api/v1/query":
            query = parse_qs(address.query)["query"][0]
            value = {"max(vllm:kv_cache_usage_perc)": "0.5", "sum(vllm:num_requests_waiting)": "9"}.get(query)
            result = [{"metric": {}, "value": [0, value]}] if value else []
            text = json.dumps({"status": "success", "data": {"result": result}})
        self.send_response(200 if text else 404)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_pressure_of_an_engine(url: str) -> None:
    """What is short is said, and that this is no verdict."""
    answer = read_pressure(f"{url}/metrics", 20)
    figures = {figure.name: figure.value for figure in answer.figures}
    assert figures["prompt tokens found on the GPUs"] == 0.25
    assert figures["preemptions"] == 30
    assert "30 preemptions in 1,000 requests" in answer.conclusion
    assert "the pool is what limits" in answer.conclusion
    assert "there is no verdict. Record a block log for 20 minutes" in answer.conclusion
    assert "not working set over capacity" in answer.conclusion


def test_no_pressure(url: str) -> None:
    """Said too."""
    assert "there is no pressure now" in read_pressure(f"{url}/idle/metrics", 20).conclusion


def test_a_prometheus_server_is_asked(url: str) -> None:
    """Requests that wait though there is room in the cache: computing limits."""
    answer = read_pressure(url, 20)
    assert "9 requests wait though KV has room" in answer.conclusion


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/other/metrics", "has no metrics of vLLM"),
        ("/bad/metrics", "is no page of metrics"),
        ("/none/metrics", "cannot be read: Not Found"),
    ],
)
def test_addresses_that_tell_nothing(url: str, path: str, words: str) -> None:
    """Each in a sentence."""
    with pytest.raises(ConfigError, match=words):
        read_pressure(f"{url}{path}", 20)


def test_only_http_is_asked() -> None:
    """No file of this machine, and no address without a host."""
    for wrong in ("file:///etc/passwd", "metrics", "http:///metrics"):
        with pytest.raises(ConfigError, match="allowed: http://HOST:PORT/metrics"):
            read_pressure(wrong, 20)


def test_the_snippet_is_a_configuration() -> None:
    """As it stands."""
    import yaml

    assert AnbarConfig.model_validate(yaml.safe_load(SNIPPET)).router.record.path is not None
