"""What is tried when a bucket is opened, and how it is told."""

from dataclasses import replace
from pathlib import Path

import obstore
import pytest

from anbar.adapters.store.s3 import S3Store, S3StoreConfig
from anbar.apps.doctor.finding import Level
from anbar.apps.doctor.store import check_bucket
from anbar.apps.stores import open_store
from anbar.config.s3 import S3Config
from anbar.config.stores import StoreConfig, StoreKind
from anbar.core.errors import StoreError
from anbar.testing.store_contract import KEY, TIMEOUT_S, VALUE, exists, get, put
from anbar.tier.store import Outcome
from tests.integration.s3.conftest import FAILED
from tests.s3_server import BUCKET, READER_ID, READER_SECRET, SECRET, S3Server
from tests.waiting import wait_until


def refusal(config: S3StoreConfig, **place: object) -> str:
    """What opening says of a changed place."""
    store = S3Store(replace(config, place=replace(config.place, **place)), b"model")  # type: ignore[arg-type]
    with pytest.raises(StoreError) as error:
        store.open()
    store.close()
    text = str(error.value)
    assert "wrong-secret" not in text
    assert SECRET not in text
    return text


def test_what_cannot_work_is_refused(s3: S3Server, config: S3StoreConfig) -> None:
    """No such bucket, a secret or a key that the server does not know, the right to write missing: the text
    names the server, the bucket and what is wrong, and no secret."""
    text = refusal(config, bucket="no-such-bucket")
    assert s3.endpoint in text
    assert "the bucket no-such-bucket does not exist" in text
    wrong = refusal(config, credentials_file=s3.credentials(secret="wrong-secret"))
    assert f"s3://{BUCKET}/" in wrong
    assert "SignatureDoesNotMatch" in wrong
    assert "InvalidAccessKeyId" in refusal(config, credentials_file=s3.credentials("nobody"))
    reader = s3.credentials(READER_ID, READER_SECRET)
    assert "putting an object failed: access is denied" in refusal(config, credentials_file=reader)


def test_files_that_are_no_use_are_named(s3: S3Server, config: S3StoreConfig, tmp_path: Path) -> None:
    """Credentials that are missing, lack a section or a key, or are no such file, and a CA file that is
    none."""
    assert "no-file cannot be read: No such file" in refusal(config, credentials_file=tmp_path / "no-file")
    assert "'other'" in refusal(config, profile="other")
    for content in ("[default]\naws_access_key_id = x\n", "wrong-secret\n"):
        (tmp_path / "keys").write_text(content)
        assert str(tmp_path / "keys") in refusal(config, credentials_file=tmp_path / "keys")
    (tmp_path / "ca.pem").write_text("none")
    refusal(config, ca_file=tmp_path / "ca.pem")


def test_the_probe_leaves_nothing(s3: S3Server, config: S3StoreConfig) -> None:
    """What opening writes it removes."""
    store = S3Store(config, b"model")
    assert store.open() == ""
    store.close()
    assert obstore.list(s3.client(), config.place.prefix).collect() == []


def test_a_server_that_comes_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody listens at the start of an engine: it starts, with a warning; its lookups fail. The server
    comes, and the same store works."""
    server = S3Server(tmp_path)
    section = S3Config(
        bucket=BUCKET, endpoint=server.endpoint, allow_http=True, credentials_file=server.credentials()
    )
    config = StoreConfig(kind=StoreKind.S3, timeout_s=2.0, s3=section)
    assert check_bucket(config, "cache.store.s3").level is Level.WARN
    store = open_store(config, b"model")
    assert server.endpoint in caplog.text
    assert exists(store, KEY) in FAILED
    try:
        server.start()
        wait_until(lambda: put(store, KEY, VALUE) is Outcome.HIT)
        wait_until(lambda: get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE))
        assert check_bucket(config, "cache.store.s3").level is Level.OK
    finally:
        store.close()
        server.kill()


def test_doctor_tells_what_to_correct(s3: S3Server) -> None:
    """A bucket that does not exist fails the check, with the key to look at."""
    section = S3Config(
        bucket="no-such-bucket", endpoint=s3.endpoint, allow_http=True, credentials_file=s3.credentials()
    )
    found = check_bucket(StoreConfig(kind=StoreKind.S3, timeout_s=TIMEOUT_S, s3=section), "cache.store.s3")
    assert found.level is Level.FAIL
    assert "does not exist" in found.detail
    assert "cache.store.s3" in found.fix
