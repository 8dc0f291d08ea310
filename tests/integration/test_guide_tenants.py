"""The guide to tenants, followed to the letter in an empty directory, and its rules in a real store."""

import re
from pathlib import Path

import pytest

from anbar.adapters.keys.files import KEYS_DIR, KeyFiles
from anbar.apps.stores import Sharing, open_store
from anbar.config.load import load
from anbar.config.render import tier_settings
from anbar.config.scope_rules import read_tenants
from anbar.config.store_checks import read_store
from anbar.testing.store_contract import KEY, VALUE, get, put
from anbar.tier.store import Outcome
from tests.e2e.guide import REPO, Following, follow
from tests.ports import free_ports

GUIDE = REPO / "docs/guides/security-and-tenants.md"
LIMIT_S = 400


@pytest.mark.timeout(LIMIT_S + 60)
def test_the_guide(tmp_path: Path) -> None:
    """Every block runs without an error and prints what the guide says, at other ports; where a reader would
    wait for a second, the router's new salt is waited for."""
    router, engines, *_ = free_ports(4)
    until = "until ask bank > last.txt; grep -q 'not' last.txt; do sleep 0.3; done; cat last.txt\n"
    settle = f"{REPO}/.venv/bin/python {REPO}/tests/e2e/settle.py http://127.0.0.1:{router}\n"
    renamed = {"8000": str(router), "8100": str(engines)}
    replaced = {
        "timeout 120": "timeout 300",
        "sleep 3\nask bank\n": until,
        "ask acme-app\n": f"{settle}ask acme-app\n",
        "ask bank\nanbar cache": f"{settle}ask bank\nanbar cache",
    }
    assert follow(GUIDE, tmp_path, Following(renamed, replaced, LIMIT_S)) == 2


def test_the_rules_of_the_guide_hold_in_its_store(tmp_path: Path) -> None:
    """The guide's file by the way that it takes to an engine: the bank's entries are sealed and end with its
    key, others' are as they are."""
    text = re.search(r"<<'END'\n(.*?)^END$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert text is not None
    file = tmp_path / "tenants.yaml"
    file.write_text(text[1])
    config = load(file, environ={}).config
    settings = tier_settings(config)
    scopes, keys = read_tenants(settings["tenants"])
    assert keys == config.state_dir / KEYS_DIR
    assert scopes.of("acme").quota_bytes == 10 * 2**30
    store = open_store(read_store(settings["store"]), Sharing(b"model", scopes, KeyFiles(keys)))
    for scope in ("acme", "bank"):
        assert put(store, KEY, VALUE, scope) is Outcome.HIT
        assert get(store, KEY, len(VALUE), scope) == (Outcome.HIT, VALUE)
    files = [path.read_bytes() for path in tmp_path.rglob("*.kv")]
    assert [VALUE in content for content in files].count(True) == 1
    KeyFiles(keys).purge("bank")
    assert get(store, KEY, len(VALUE), "bank")[0] is Outcome.NO_KEY
    assert get(store, KEY, len(VALUE), "acme") == (Outcome.HIT, VALUE)
    store.close()
