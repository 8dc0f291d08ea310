"""Encrypted connections. The server of the tests has no TLS of its own: something in front of it has."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from anbar.adapters.store.valkey.wire import Login, Node, Tls
from anbar.core.errors import StoreError
from anbar.testing.store_contract import KEY, TIMEOUT_S, get, put
from anbar.tier.store import Outcome
from tests.integration.valkey.servers import Server, server, store_on
from tests.tls_front import CA, CERT, KEY_FILE, TlsFront

DISTRUST = "CERTIFICATE_VERIFY_FAILED"
LARGE = bytes(range(256)) * 4096


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("valkey")) as one:
        yield one


@pytest.fixture(scope="module", params=[False, True], ids=["any client", "clients with a certificate"])
def front(one: Server, request: pytest.FixtureRequest) -> Iterator[TlsFront]:
    front = TlsFront(one.port, asks=request.param)
    yield front
    front.close()


def login(tls: Tls | None) -> Login:
    return Login(tls=tls, connect_timeout_s=TIMEOUT_S)


def test_a_verified_server(front: TlsFront) -> None:
    """Large values both ways."""
    tls = Tls(CA, CERT, KEY_FILE)
    with store_on(Node(f"localhost:{front.port}"), login=login(tls)) as store:
        assert put(store, KEY, LARGE) is Outcome.HIT
        assert get(store, KEY, len(LARGE)) == (Outcome.HIT, LARGE)
        store.delete([KEY], scope="", timeout_s=TIMEOUT_S)


def test_a_server_that_nobody_vouches_for(front: TlsFront) -> None:
    """An error that says so."""
    with (
        pytest.raises(StoreError, match=DISTRUST),
        store_on(Node(f"localhost:{front.port}"), login=login(Tls())),
    ):
        pass


def test_a_server_of_another_name(front: TlsFront) -> None:
    """An error, unless names are not to be looked at; whom to trust is looked at all the same."""
    node = Node(f"127.0.0.1:{front.port}")
    with pytest.raises(StoreError, match=DISTRUST), store_on(node, login=login(Tls(CA, CERT, KEY_FILE))):
        pass
    tls = Tls(CA, CERT, KEY_FILE, verify_host=False)
    with store_on(node, login=login(tls)) as store:
        assert put(store, KEY, LARGE) is Outcome.HIT
    with pytest.raises(StoreError, match=DISTRUST), store_on(node, login=login(Tls(verify_host=False))):
        pass


def test_a_server_without_tls(one: Server) -> None:
    """It waits for the rest of what it takes for a command: as if it could not be reached, which is said."""
    hasty = Login(tls=Tls(CA), connect_timeout_s=0.3)
    with store_on(one.node, login=hasty) as store:
        assert put(store, KEY, LARGE) is Outcome.ERROR


@pytest.mark.parametrize("name", ["none", "text"])
def test_files_that_are_no_certificates(one: Server, tmp_path: Path, name: str) -> None:
    """One that is missing, and one with something else in it, each in both roles: errors that name it."""
    (tmp_path / "text").write_text("no certificate")
    file = tmp_path / name
    for tls in (Tls(file), Tls(CA, file, KEY_FILE)):
        with pytest.raises(StoreError, match=f"TLS: .*{file}"), store_on(one.node, login=login(tls)):
            pass
