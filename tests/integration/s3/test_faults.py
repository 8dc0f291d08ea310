"""What becomes of calls while the server, or the way to it, fails."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from anbar.adapters.store.s3 import S3Store, S3StoreConfig
from anbar.testing.store_contract import KEY, OTHER, TIMEOUT_S, VALUE, exists, get, put
from anbar.tier.store import Outcome, PutItem
from tests.integration.s3.conftest import FAILED, SERVER, Opener
from tests.s3_server import S3Server, running_s3
from tests.tcp_proxy import TcpProxy, running_proxy
from tests.waiting import wait_until

LARGE = bytes(range(256)) * 4096


def num_connections(port: int) -> int:
    """Of this process to a server."""
    found = psutil.Process().net_connections("tcp")
    return sum(one.status == psutil.CONN_ESTABLISHED and one.raddr[1] == port for one in found if one.raddr)


def test_a_frozen_then_killed_then_restarted_server(tmp_path: Path) -> None:
    """SIGSTOP: each call is a TIMEOUT at its deadline, and its connections are gone; buffers stay as they
    were. SIGCONT: it works again. SIGKILL in the middle of a call: the call fails. Started again: the same
    store works, with what the server held."""
    with running_s3(tmp_path, SERVER) as server:
        store = S3Store(S3StoreConfig(server.place(), "s3-test", timeout_s=TIMEOUT_S), b"model")
        assert store.open() == ""
        try:
            put(store, KEY, VALUE)
            before = num_connections(server.port)
            server.freeze()
            buffer = bytearray(b"x" * len(VALUE))
            item = PutItem(OTHER, memoryview(VALUE))
            assert store.exists([KEY], scope="", timeout_s=0.3) == [Outcome.TIMEOUT]
            found = store.get_into([KEY], [memoryview(buffer)], scope="", timeout_s=0.3)
            assert found == [Outcome.TIMEOUT]
            assert store.put([item], scope="", timeout_s=0.3) == [Outcome.TIMEOUT]
            assert store.delete_scope("", timeout_s=0.3) is Outcome.TIMEOUT
            # Kept ones were taken for these calls, and others were made: those that are left were not used.
            wait_until(lambda: num_connections(server.port) < before)
            server.thaw()
            assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)
            assert bytes(buffer) == b"x" * len(VALUE)
            kill_in_the_middle_of_a_call(server, store)
            server.start()
            wait_until(lambda: get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE))
            assert put(store, OTHER, VALUE) is Outcome.HIT
        finally:
            store.close()


def kill_in_the_middle_of_a_call(server: S3Server, store: S3Store) -> None:
    outcomes: list[Outcome] = []
    server.freeze()  # so that it cannot be sooner
    call = threading.Thread(target=lambda: outcomes.append(get(store, KEY, len(VALUE))[0]))
    call.start()
    server.kill()
    call.join(TIMEOUT_S)
    assert outcomes
    assert outcomes[0] in FAILED


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[TcpProxy]:
    with running_proxy(s3.port) as proxy:
        yield proxy


@pytest.fixture
def through(opener: Opener, config: S3StoreConfig, proxy: TcpProxy) -> S3Store:
    """A store whose server is behind the proxy."""
    return opener(place=replace(config.place, endpoint=f"http://127.0.0.1:{proxy.port}"))


def test_late_bytes_reach_no_buffer(through: S3Store, proxy: TcpProxy) -> None:
    """The network holds an answer back until after the deadline, then delivers it: the caller's buffer, which
    is somebody else's by then, stays as it is."""
    put(through, KEY, LARGE)
    proxy.gate.clear()
    buffer = bytearray(b"x" * len(LARGE))
    found = through.get_into([KEY], [memoryview(buffer)], scope="", timeout_s=0.3)
    assert found == [Outcome.TIMEOUT]
    proxy.gate.set()
    assert get(through, KEY, len(LARGE)) == (Outcome.HIT, LARGE)
    assert bytes(buffer) == b"x" * len(LARGE)


def test_a_buffer_may_change_after_a_late_put(through: S3Store, proxy: TcpProxy) -> None:
    """An upload whose answer is late, and a row that is used for another key right after: what the server has
    stored, if it has, is what the row held before."""
    row = bytearray(LARGE)
    proxy.gate.clear()
    found = through.put([PutItem(KEY, memoryview(row))], scope="", timeout_s=0.3)
    row[:] = bytes(len(row))
    assert found == [Outcome.TIMEOUT]
    proxy.gate.set()
    assert get(through, KEY, len(LARGE)) in ((Outcome.HIT, LARGE), (Outcome.MISS, bytes(len(LARGE))))


def test_a_cut_body_is_read_again(through: S3Store, proxy: TcpProxy) -> None:
    """The connection is reset in the middle of a value, twice: the read is repeated, and is right."""
    put(through, KEY, LARGE)
    proxy.cut_after_bytes, proxy.num_cuts = 300_000, 2
    assert get(through, KEY, len(LARGE)) == (Outcome.HIT, LARGE)
    assert proxy.num_cuts == 0


def test_a_network_that_cuts_everything(opener: Opener, config: S3StoreConfig, proxy: TcpProxy) -> None:
    """Every connection is reset in its answer: all calls fail, none is a hit or a miss, and nothing is
    removed. As soon as the network is well, so is the store."""
    place = replace(config.place, endpoint=f"http://127.0.0.1:{proxy.port}")
    store = S3Store(replace(config, place=place, timeout_s=1.0), b"model")
    store.open()
    other = opener()
    put(other, KEY, LARGE)
    proxy.cut_after_bytes = 10
    assert exists(store, KEY) in FAILED
    assert get(store, KEY, len(LARGE))[0] in FAILED
    assert put(store, OTHER, LARGE) in FAILED
    assert store.delete([KEY], scope="", timeout_s=TIMEOUT_S)[0] in FAILED
    assert store.delete_scope("", timeout_s=TIMEOUT_S) in FAILED
    assert get(other, KEY, len(LARGE)) == (Outcome.HIT, LARGE)
    proxy.cut_after_bytes = None
    wait_until(lambda: get(store, KEY, len(LARGE)) == (Outcome.HIT, LARGE))
    store.close()


class Scripted(ThreadingHTTPServer):
    """Answers what it is told to, status and code of S3; the last answer for ever. None: no answer at all."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, str] | None] = [(404, "NoSuchKey")]
        self.num_requests = 0
        self.silence = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.num_requests += 1
        answers = self.server.answers
        said = answers.pop(0) if len(answers) > 1 else answers[0]
        if said is None:
            self.server.silence.wait()
            self.close_connection = True
            return
        body = f"<Error><Code>{said[1]}</Code><Message>scripted</Message></Error>".encode()
        self.send_response(said[0])
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = answer  # noqa: N815  # the base class's names

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def scripted(s3: S3Server, timeout_s: float = TIMEOUT_S) -> Iterator[tuple[Scripted, S3Store]]:
    """A store on a server that says what it is told to."""
    server = Scripted()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    place = s3.place(endpoint=f"http://127.0.0.1:{server.server_address[1]}")
    store = S3Store(S3StoreConfig(place, "s3-test", timeout_s=timeout_s), b"model")
    server.answers = [(503, "ServiceUnavailable")]
    store.open()
    try:
        yield server, store
    finally:
        store.close()
        server.silence.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_each_answer_has_its_outcome(s3: S3Server) -> None:
    """SlowDown and internal errors are repeated until they pass, or are ERROR; 403 is an ERROR at once; a
    full server and a full quota are FULL; a bucket that is gone is an ERROR for who writes or reads."""
    with scripted(s3) as (server, store):
        server.answers = [(503, "SlowDown"), (500, "InternalError"), (404, "NoSuchKey")]
        assert get(store, KEY, 8)[0] is Outcome.MISS
        server.answers = [(503, "SlowDown")]
        assert get(store, KEY, 8)[0] is Outcome.ERROR
        before, server.answers = server.num_requests, [(403, "AccessDenied")]
        assert get(store, KEY, 8)[0] is Outcome.ERROR
        assert server.num_requests == before + 1
        server.answers = [(404, "NoSuchBucket")]
        assert get(store, KEY, 8)[0] is Outcome.ERROR
        for answer, outcome in (
            ((507, "XMinioStorageFull"), Outcome.FULL),
            ((403, "QuotaExceeded"), Outcome.FULL),
            ((403, "AccessDenied"), Outcome.ERROR),
            ((404, "NoSuchBucket"), Outcome.ERROR),
        ):
            server.answers = [(404, "NoSuchKey"), answer]
            assert put(store, KEY, b"x" * 8) is outcome


def test_a_read_that_stalls_is_repeated(s3: S3Server) -> None:
    """A request is never answered: after half of `timeout_s` it is sent once more, unless the machine stood
    still for so long that its time was over. When none is answered, and the call has time left, it is a
    TIMEOUT all the same."""
    with scripted(s3, timeout_s=2.0) as (server, store):

        def is_repeated() -> bool:
            before, server.answers = server.num_requests, [None, (404, "NoSuchKey")]
            return exists(store, KEY) is Outcome.MISS and server.num_requests > before + 1

        wait_until(is_repeated)
        server.answers = [None]
        assert exists(store, KEY) is Outcome.TIMEOUT
