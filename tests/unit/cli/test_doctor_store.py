"""Doctor, of shared stores: what would not fail, but be of little use."""

import socket
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from anbar.apps.doctor import Level
from anbar.apps.doctor.room import check_room
from anbar.apps.doctor.run import check_store
from anbar.config.models import AnbarConfig


def warnings_of(store: dict[str, Any], **config: Any) -> list[str]:
    found = check_store(AnbarConfig.model_validate({"cache": {"store": store}, **config}))
    return [f"{finding.detail}; {finding.fix}" for finding in found if finding.level is Level.WARN]


@pytest.mark.parametrize(
    ("capacity", "words"), [("9000TiB", "in all"), ("10B", "a few chunks"), ("64MiB", None), (None, None)]
)
def test_a_capacity_that_makes_no_sense(tmp_path: Path, capacity: str | None, words: str | None) -> None:
    """More than the disk has; less than is of use."""
    found = warnings_of({"path": str(tmp_path / "kv"), "capacity_bytes": capacity})
    assert len(found) == (words is not None)
    assert all(words in text and "cache.store.capacity_bytes" in text for text in found if words)


def test_a_quota_that_the_store_never_holds(tmp_path: Path) -> None:
    """It would bound nothing."""
    table = {"header": "x", "by_name": {"a": {}}, "scopes": {"a": {"quota_bytes": "100MiB"}}}
    (text,) = warnings_of({"path": str(tmp_path), "capacity_bytes": "99MiB"}, tenants=table)
    assert "tenants.scopes.a.quota_bytes is 100MiB" in text
    assert warnings_of({"path": str(tmp_path), "capacity_bytes": "100MiB"}, tenants=table) == []


def test_a_store_that_is_the_whole_system() -> None:
    """Whatever leads there."""
    (finding,) = check_room(Path("/usr/.."), "cache.store", None, None)
    assert (finding.level, finding.fix) == (Level.WARN, "choose another cache.store.path")


def test_members_that_are_one_place(tmp_path: Path) -> None:
    """One within the other, or the same by a link, is one disk."""
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")

    def found(*names: str) -> list[str]:
        members = [{"path": str(tmp_path / name)} for name in names]
        return warnings_of({"kind": "replicated", "members": members})

    assert ["members[1].path" in text for text in found("a", "a/v1")] == [True]
    assert ["members[1].path" in text for text in found("a", "link")] == [True]
    assert found("a", "ab") == []


@pytest.mark.parametrize("answer", [b"+PONG\r\n", b"HTTP/1.1 403 Forbidden\r\n\r\n"])
def test_tls_is_asked_of_a_server_without(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is told as what it is. A server that says nothing may be away."""
    monkeypatch.setattr("anbar.apps.doctor.store.try_valkey", lambda _: "does not answer")
    raw = "putting failed: Generic S3 error: PUT, max_retries: 6 - HTTP error: sending"
    monkeypatch.setattr("anbar.apps.doctor.store.try_s3", lambda _: raw)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        answerer = Thread(target=_answer_once, args=(listener, answer), daemon=True)
        answerer.start()
        valkey = {"kind": "valkey", "valkey": {"nodes": [address], "tls": True}}
        s3 = {"kind": "s3", "s3": {"bucket": "kv-cache", "endpoint": f"https://{address}"}}
        store, key = (valkey, "valkey.tls") if answer.startswith(b"+") else (s3, "s3.allow_http")
        (text,) = warnings_of(store)
        answerer.join()
    assert "answers without TLS" in text
    assert f"cache.store.{key}" in text
    (away,) = warnings_of(store)
    assert "start it" in away
    assert "Generic" not in away


def _answer_once(listener: socket.socket, answer: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(1024)
        connection.sendall(answer)
