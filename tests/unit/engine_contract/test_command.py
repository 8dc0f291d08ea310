"""The contract's command: what it prints, and how it ends. The checks themselves are held to real engines."""

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import zmq

from anbar.testing.engine_contract import Target
from anbar.testing.engine_contract.__main__ import Outcome, main, outcome
from anbar.testing.engine_contract.event_log import connected_socket
from anbar.testing.engine_contract.events import check_event_sources

SOURCE = '{"0": {"endpoint": "tcp://*:5557", "replay_endpoint": null, "publisher": "zmq"}}'
MODELS = '{"data": [{"id": "llama", "max_model_len": 128}, {"id": "llama-adapter", "max_model_len": 128}]}'


class Pages(BaseHTTPRequestHandler):
    """An engine of two pages."""

    def do_GET(self) -> None:
        page = {"/v1/models": MODELS, "/kv_event_sources": SOURCE}.get(self.path)
        self.send_response(404 if page is None else 200)
        self.end_headers()
        self.wfile.write((page or "").encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens: it is bound, and stays so."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_nobody_there(nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No server: what asks it fails; what is about absent events is skipped with the reason, and counted."""
    assert main(["--url", nobody, "--model", "llama", "--only", "event_sources"]) == 0
    said = capsys.readouterr().out
    assert " skip it publishes no events\n" in said
    assert said.endswith("\n0 ok, 0 FAIL, 1 skip\n")
    assert main(["--url", nobody, "--model", "llama", "--only", "check_event", "--events", "tcp://x:1"]) == 2
    said = capsys.readouterr().out
    assert "FAIL ConnectionRefusedError" in said
    assert said.endswith("\n0 ok, 2 FAIL, 0 skip\n")


def test_unknown_check(nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is nobody's is refused with those that there are."""
    with pytest.raises(SystemExit) as ended:
        main(["--url", nobody, "--model", "llama", "--only", "nothing like that"])
    assert ended.value.code == 2
    assert "'nothing like that'; there are check_" in capsys.readouterr().err


def test_unknown_model(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Another model than the served ones is refused with their names, before any check."""
    with pytest.raises(SystemExit):
        main(["--url", url, "--model", "qwen"])
    said = capsys.readouterr()
    assert f"{url} serves llama, llama-adapter, not qwen" in said.err
    assert not said.out


def test_silence(tmp_path: Path) -> None:
    """No event comes: the check fails, and says what is to be looked at."""
    address = f"ipc://{tmp_path}/events"

    def check(target: Target) -> None:
        with connected_socket(zmq.SUB, target.events, 0.01) as subscriber:
            subscriber.recv_multipart()

    found, text = outcome(check, Target("http://127.0.0.1:1", "llama", address))
    assert found is Outcome.FAILED
    assert text.startswith(f"nothing came from {address} within ")
    assert "tcp://127.0.0.1:PORT it connects" in text


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ("tcp://127.0.0.1:5557", Outcome.OK),
        ("tcp://127.0.0.1:5558", Outcome.FAILED),
        ("ipc:///tmp/events", Outcome.FAILED),
    ],
)
def test_addresses(url: str, events: str, found: Outcome) -> None:
    """An engine that binds every interface is met at any host of that port."""
    assert outcome(check_event_sources, Target(url, "llama", events))[0] is found
