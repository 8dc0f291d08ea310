"""Opening a store for tenants: what each scope may have reaches every part of it."""

from pathlib import Path

from anbar.adapters.keys.files import KeyFiles
from anbar.adapters.store.record import HEADER_BYTES
from anbar.adapters.store.seal import EXTRA_BYTES
from anbar.apps.stores import Sharing, open_store
from anbar.config.store_checks import read_store
from anbar.testing.store_contract import KEY, VALUE, exists, get, put
from anbar.tier.scopes import ScopeRules, Scopes
from anbar.tier.store import Outcome

TENANT = "tenant"
ENTRY_BYTES = len(VALUE) + EXTRA_BYTES + HEADER_BYTES


def sharing(tmp_path: Path, **rules: int) -> Sharing:
    scopes = Scopes(named={TENANT: ScopeRules(encrypt=True, **rules)})
    return Sharing(b"model", scopes, KeyFiles(tmp_path / "keys"))


def test_each_copy_is_sealed(tmp_path: Path) -> None:
    """Two directories under one store: neither holds a part of the value. The data key is deleted: it is a
    miss, and what is stored then is another entry beside it."""
    members = [{"kind": "files", "path": str(tmp_path / name)} for name in "ab"]
    shared = sharing(tmp_path)
    store = open_store(read_store({"kind": "replicated", "members": members}), shared)
    assert put(store, KEY, VALUE, TENANT) is Outcome.HIT
    files = list(tmp_path.glob("[ab]/**/*.kv"))
    assert len(files) == 2
    assert not any(VALUE[:64] in file.read_bytes() for file in files)
    assert get(store, KEY, len(VALUE), TENANT) == (Outcome.HIT, VALUE)
    assert shared.keys is not None
    shared.keys.purge(TENANT)
    assert exists(store, KEY, TENANT) is Outcome.NO_KEY
    assert put(store, KEY, VALUE, TENANT) is Outcome.HIT
    assert get(store, KEY, len(VALUE), TENANT) == (Outcome.HIT, VALUE)
    store.close()


def test_a_quota_counts_each_entry_once(tmp_path: Path) -> None:
    """Two copies of each entry on two directories: as many entries as on one directory, and of a layered
    store too."""
    for kind in ("files", "replicated", "layered"):
        root = tmp_path / kind
        members = [{"kind": "files", "path": str(root / name)} for name in "ab"]
        settings = {"kind": kind, "members": members} if kind != "files" else members[0]
        store = open_store(read_store(settings), sharing(root, quota_bytes=int(3.5 * ENTRY_BYTES)))
        found = [put(store, bytes([index]) * 36, VALUE, TENANT) for index in range(4)]
        assert found == [Outcome.HIT] * 3 + [Outcome.OVER_QUOTA], kind
        assert put(store, KEY, VALUE) is Outcome.HIT
        store.close()
