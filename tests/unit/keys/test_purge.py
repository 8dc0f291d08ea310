"""`anbar cache purge`: whose KV it is, what is done, and what is said."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from anbar.adapters.keys.files import KeyFiles
from anbar.adapters.store.files import FilesStore
from anbar.adapters.store.scope_removal import Removal
from anbar.apps.stores import open_store
from anbar.cli.cache import app
from anbar.config.load import load
from anbar.config.stores import StoreConfig
from anbar.core.errors import ConfigError
from anbar.tier.store import Outcome, PutItem

TIMEOUT_S = 60.0
TENANTS: dict[str, Any] = {
    "header": "x-tenant",
    "by_name": {"ada": {"group": "lab"}, "grace": {"group": "lab"}, "bank": {}, "shop": {}},
}


class Place:
    """A configuration with a store of files, and what is in it."""

    def __init__(self, directory: Path, **changes: object) -> None:
        self.path = directory / "anbar.yaml"
        self.store_dir = directory / "state/store"
        self.store_dir.mkdir(parents=True)
        self.path.write_text(yaml.safe_dump({"state_dir": "state", "tenants": TENANTS, **changes}))
        self.keys = KeyFiles(directory / "state/keys")

    def purge(self, *options: str) -> Result:
        return CliRunner().invoke(app, ["purge", "--config", str(self.path), *options])

    def fill(self, *scopes: str) -> None:
        """An entry of each scope, of two models."""
        for namespace in (b"one", b"two"):
            store = open_store(StoreConfig(path=self.store_dir), namespace)
            for scope in scopes:
                item = PutItem(b"k" * 36, memoryview(b"value"))
                assert store.put([item], scope=scope, timeout_s=TIMEOUT_S) == [Outcome.HIT]
            store.close()

    def held(self, *scopes: str) -> list[str]:
        """Of these scopes those that still have an entry, of whichever model."""
        found = set()
        for namespace in (b"one", b"two"):
            store = open_store(StoreConfig(path=self.store_dir), namespace)
            for scope in scopes:
                if store.exists([b"k" * 36], scope=scope, timeout_s=TIMEOUT_S) == [Outcome.HIT]:
                    found.add(scope)
            store.close()
        return sorted(found)


def test_a_tenant_is_purged(tmp_path: Path) -> None:
    """Its key, its salt and its entries, of all models; everybody else's stay. A second time there is nothing
    left to remove, and the salt changes again."""
    place = Place(tmp_path)
    place.fill("bank", "shop", "")
    place.keys.make_data_key("bank")
    kept = place.keys.make_data_key("shop")
    done = place.purge("--tenant", "bank")
    assert done.exit_code == 0, done.output
    for words in ("cached of bank", "data key deleted", "salt changed", "entries removed"):
        assert words in done.output
    assert place.keys.data_key("bank") is None
    assert (place.keys.data_key("shop"), place.keys.epoch("shop")) == (kept, b"")
    assert place.held("bank", "shop", "") == ["", "shop"]
    epoch = place.keys.epoch("bank")
    again = place.purge("--tenant", "bank")
    assert again.exit_code == 0
    assert "no data key to delete" in again.output
    assert "had no entries" in again.output
    assert place.keys.epoch("bank") not in (b"", epoch)


def test_a_group_is_purged_only_as_one(tmp_path: Path) -> None:
    """By the name of one of its tenants: refused, with whose KV it is and what to type; then done."""
    place = Place(tmp_path)
    place.fill("lab")
    refused = place.purge("--tenant", "ada")
    assert isinstance(refused.exception, ConfigError)
    for words in ("'lab'", "ada, grace", "--group lab purges it for all of them"):
        assert words in str(refused.exception)
    assert (place.held("lab"), place.keys.epoch("lab")) == (["lab"], b"")
    done = place.purge("--group", "lab")
    assert done.exit_code == 0
    assert "ada, grace" in done.output
    assert place.held("lab") == []


def test_requests_without_a_tenant(tmp_path: Path) -> None:
    """Their scope has no name."""
    place = Place(tmp_path)
    place.fill("", "bank")
    assert place.purge("--default").exit_code == 0
    assert place.held("", "bank") == ["bank"]


def test_who_was_taken_out_of_the_file(tmp_path: Path) -> None:
    """A tenant that is refused since is purged by the name of its scope."""
    place = Place(tmp_path)
    place.fill("left", "bank")
    place.keys.make_data_key("left")
    done = place.purge("--scope", "left")
    assert (done.exit_code, "cached of left" in done.output) == (0, True)
    assert (place.keys.data_key("left"), place.held("left", "bank")) == (None, ["bank"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "needs one of --tenant, --group, --scope and --default"),
        (["--scope", ""], "--default means requests without a tenant"),
        (["--scope", "bank", "--group", "lab"], "needs one of"),
        (["--tenant", "bank", "--default"], "needs one of"),
        (["--tenant", "bnak"], "no such tenant; did you mean `bank`?"),
        (["--tenant", "lab"], "no such tenant"),
        (["--tenant", "gone-long-ago"], "if it was taken out, --scope gone-long-ago purges what it left"),
        (["--tenant", ""], "no such tenant"),
        (["--group", "bank"], "no such group; use --tenant bank"),
        (["--group", "labs"], "no such group; did you mean `lab`?"),
    ],
)
def test_who_is_not_known_is_not_purged(tmp_path: Path, options: list[str], words: str) -> None:
    """Refused, with what was meant perhaps; nothing has changed."""
    place = Place(tmp_path)
    place.keys.make_data_key("bank")
    refused = place.purge(*options)
    assert isinstance(refused.exception, ConfigError)
    assert words in str(refused.exception)
    assert place.keys.data_key("bank") is not None


def test_without_tenants_there_is_nothing_to_purge(tmp_path: Path) -> None:
    """Nobody's KV is kept apart."""
    refused = Place(tmp_path, tenants=None).purge("--tenant", "bank")
    assert isinstance(refused.exception, ConfigError)
    assert "no `tenants`" in str(refused.exception)


def test_a_store_that_is_away_is_said(tmp_path: Path) -> None:
    """Key and salt are done first; the store is named as not done, and the exit status says so. Its directory
    is not made in its absence."""
    place = Place(tmp_path, cache={"store": {"path": "state/store"}})
    place.keys.make_data_key("bank")
    place.store_dir.rmdir()
    done = place.purge("--tenant", "bank")
    assert done.exit_code == 1
    assert (
        f"NOT DONE: store {_store_id(place)}: entries not removed, or not all: {place.store_dir}"
        in done.output
    )
    assert place.keys.data_key("bank") is None
    assert place.keys.epoch("bank") != b""
    assert not place.store_dir.exists()


def test_a_store_that_is_away_keeps_no_other_from_being_purged(tmp_path: Path) -> None:
    """One of two copies is not mounted: the other one is purged, and the one that was not is named."""
    member = {"kind": "files", "path": "state/store"}
    away = {"kind": "files", "path": "away", "id": "east"}
    store = {"kind": "replicated", "members": [away, member]}
    place = Place(tmp_path, cache={"store": store})
    place.fill("bank", "shop")
    done = place.purge("--tenant", "bank")
    assert done.exit_code == 1
    assert (
        f"NOT DONE: store east: entries not removed, or not all: {tmp_path}/away is not there" in done.output
    )
    assert ": entries removed" in done.output
    assert place.held("bank", "shop") == ["shop"]
    assert not (tmp_path / "away").exists()


@pytest.mark.parametrize(
    ("removal", "words"),
    [
        (
            Removal(Outcome.TIMEOUT, "7 files are left in x"),
            "within 600 s: 7 files are left in x; fix: purge",
        ),
        (Removal(Outcome.ERROR, "x/0.kv: Operation not permitted"), "x/0.kv: Operation not permitted; fix:"),
    ],
)
def test_what_is_left_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removal: Removal, words: str
) -> None:
    """As the store tells it, and the exit status says so."""
    monkeypatch.setattr(FilesStore, "remove_scope", lambda *_, **__: removal)
    done = Place(tmp_path).purge("--tenant", "bank")
    assert (done.exit_code, "NOT DONE" in done.output, words in done.output) == (1, True, True)
    assert ": entries removed" not in done.output


@pytest.mark.parametrize("scope", ["bnak", "../../x", "ada"])
def test_a_scope_that_nobody_knows(tmp_path: Path, scope: str) -> None:
    """A slip of the pen is no success: refused, with what there is, and nothing is left of it."""
    place = Place(tmp_path)
    refused = place.purge("--scope", scope)
    assert isinstance(refused.exception, ConfigError)
    for words in ("there is no such scope", "there are: bank, lab, shop"):
        assert words in str(refused.exception)
    assert ("did you mean `bank`?" in str(refused.exception)) is (scope == "bnak")
    assert ("a tenant of the group 'lab'" in str(refused.exception)) is (scope == "ada")
    assert not place.keys.knows(scope)


def test_a_scope_that_was_known_before(tmp_path: Path) -> None:
    """Only its entries tell of it, then only its epoch: purged both times."""
    place = Place(tmp_path)
    place.fill("left")
    for words in ("entries removed", "had no entries"):
        done = place.purge("--scope", "left")
        assert (done.exit_code, words in done.output, "salt changed" in done.output) == (0, True, True)


def test_before_anything_was_stored(tmp_path: Path) -> None:
    """The store that engines make in the state directory is not there yet: nothing is left to do."""
    place = Place(tmp_path)
    place.store_dir.rmdir()
    done = place.purge("--tenant", "bank")
    assert done.exit_code == 0
    assert "had no entries" in done.output
    assert not place.store_dir.exists()


def test_without_a_shared_store(tmp_path: Path) -> None:
    """Engines keep KV to themselves: the new salt is all it takes."""
    done = Place(tmp_path, cache={"mode": "native"}).purge("--tenant", "bank")
    assert done.exit_code == 0
    assert "no store to look in (cache.mode is native)" in done.output


def _store_id(place: Place) -> str:
    from anbar.config.stores import store_settings

    config = load(place.path).config
    return str(store_settings(config.cache.store, config.state_dir)["id"])
