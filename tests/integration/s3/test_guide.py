"""The configuration of the guide that chooses a store, over a directory and a real bucket."""

import re
import shutil
from pathlib import Path

import yaml

from anbar.apps.stores import open_store
from anbar.config.load import load
from anbar.config.store_checks import read_store
from anbar.config.stores import store_settings
from anbar.testing.store_contract import KEY, TIMEOUT_S, VALUE, get, put
from anbar.tier.store import Outcome
from tests.e2e.guide import REPO
from tests.s3_server import BUCKET, S3Server
from tests.waiting import wait_until

GUIDE = REPO / "docs/guides/choose-a-store.md"


def test_one_store_over_another(s3: S3Server, tmp_path: Path) -> None:
    """As it stands there, but for where the directory and the bucket are: what is stored goes to both, and
    what only the bucket has left is served and copied to the directory."""
    (text,) = re.findall(r"^```yaml\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    made = yaml.safe_load(text)
    near, far = made["cache"]["store"]["members"]
    near |= {"path": str(tmp_path / "kv"), "timeout_s": TIMEOUT_S}
    place = {"endpoint": s3.endpoint, "allow_http": True, "credentials_file": str(s3.credentials())}
    far["s3"] |= {"bucket": BUCKET, "prefix": "guide", **place}
    far["timeout_s"] = TIMEOUT_S
    path = tmp_path / "anbar.yaml"
    path.write_text(yaml.safe_dump(made))
    config = load(path, environ={}).config
    store = open_store(read_store(store_settings(config.cache.store, tmp_path)), b"model")
    assert put(store, KEY, VALUE) is Outcome.HIT
    (entry,) = (tmp_path / "kv").rglob("*.kv")
    shutil.rmtree(entry.parent)
    assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)
    wait_until(entry.exists)
    store.close()
