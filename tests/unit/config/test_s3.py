"""`cache.store.s3`: what is refused, and what engines are given."""

from pathlib import Path
from typing import Any

import pytest

from anbar.apps.s3_store import s3_config
from anbar.apps.stores import open_store, store_id
from anbar.config import load as loader
from anbar.config.s3 import S3Config
from anbar.config.store_checks import read_store
from anbar.config.stores import StoreConfig, StoreKind, store_settings
from anbar.core.errors import ConfigError

BUCKET = {"bucket": "kv-cache"}


def load(tmp_path: Path, store: str) -> StoreConfig:
    file = tmp_path / "anbar.yaml"
    file.write_text(f"cache:\n  mode: shared\n  store:\n{store}\n")
    return loader.load(file).config.cache.store


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("    kind: s3", "cache.store.s3: is required"),
        ("    s3: {bucket: kv-cache}", "cache.store.s3: is not for a store of kind files"),
        ("    {kind: s3, s3: {}}", "cache.store.s3.bucket: is required"),
        ("    {kind: s3, s3: {bucket: k}}", "cache.store.s3.bucket"),
        ("    {kind: s3, s3: {bucket: kv-cache, prefix: /kv}}", "cache.store.s3.prefix"),
        ("    {kind: s3, s3: {bucket: kv-cache, part_bytes: 1MiB}}", "at least 5242880"),
        ("    {kind: s3, s3: {bucket: kv-cache, addressing: dns}}", "path, virtual"),
        ("    {kind: s3, s3: {bucket: kv-cache, endpoint: 'http://10.0.0.1:9000'}}", "allow_http: true"),
        (
            "    {kind: s3, capacity_bytes: 1GiB, s3: {bucket: kv-cache}}",
            "bounded by `s3.ttl_s`",
        ),
        (
            "    {kind: s3, path: /kv, s3: {bucket: kv-cache}}",
            "path: is not for a store of kind s3",
        ),
        ("    {kind: s3, s3: {bucket: kv-cache, secret_access_key: x}}", "secret_access_key"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, store: str, said: str) -> None:
    """Each mistake is told by its key, with what is allowed."""
    with pytest.raises(ConfigError) as refusal:
        load(tmp_path, store)
    assert said in str(refusal.value)


def test_files_are_beside_the_configuration(tmp_path: Path) -> None:
    """Relative names of files begin where anbar.yaml is; links among them stay, since they may be turned."""
    store = load(tmp_path, "    {kind: s3, s3: {bucket: kv-cache, credentials_file: keys, ca_file: ca.pem}}")
    assert store.s3 is not None
    assert store.s3.credentials_file == tmp_path / "keys"
    assert store.s3.ca_file == tmp_path / "ca.pem"


def test_engines_get_what_was_configured() -> None:
    """The plain data for an engine says the same as the model it was made of, and names the store."""
    section = S3Config(
        **BUCKET, endpoint="https://s3.example:9000", credentials_file=Path("/run/keys"), ttl_s=60.0
    )
    store = StoreConfig(kind=StoreKind.S3, s3=section)
    settings = store_settings(store, Path("/state"))
    assert "path" not in settings
    read = read_store(settings)
    assert read.s3 == section
    assert read.id == settings["id"] == store_id(store)
    assert s3_config(read, "id") == s3_config(store, "id")


@pytest.mark.parametrize("change", [{"bucket": "other"}, {"prefix": "other"}, {"endpoint": "https://other"}])
def test_each_place_has_its_name(change: dict[str, Any]) -> None:
    """Another bucket, prefix or server is another store; how it is asked makes no difference."""
    assert name_of(BUCKET | change) != name_of(BUCKET)
    assert name_of({**BUCKET, "concurrency": 3, "ttl_s": None}) == name_of(BUCKET)


def name_of(section: dict[str, Any]) -> str:
    return store_id(StoreConfig(kind=StoreKind.S3, s3=S3Config(**section)))


def test_a_hand_written_engine_configuration_is_checked_too() -> None:
    """Settings in --kv-transfer-config that lack the section: named, before anything is opened."""
    with pytest.raises(ConfigError, match=r"store\.s3 is required"):
        open_store(read_store({"kind": "s3"}), b"")
