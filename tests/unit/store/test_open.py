"""Opening what `cache.store` names, as an engine does."""

import re
import shutil
import time
from pathlib import Path

import pytest

from anbar.adapters.store.composed import ComposedStore
from anbar.apps.stores import open_store
from anbar.config.load import load
from anbar.config.store_checks import read_store
from anbar.config.stores import StoreConfig, store_settings
from anbar.core.errors import StoreError
from anbar.testing.store_contract import KEY, OTHER, VALUE, exists, get, put
from anbar.tier.store import Outcome, Store
from tests.unit.store.composed import settle

NAMESPACE = b"model"


def from_yaml(directory: Path, text: str) -> StoreConfig:
    """The store of a file, by the way that it takes to an engine."""
    path = directory / "anbar.yaml"
    path.write_text(text)
    config = load(path).config
    return read_store(store_settings(config.cache.store, config.state_dir))


REPLICATED = """\
cache:
  store:
    kind: replicated
    members: [{path: a}, {path: b}, {path: c}]
"""


def entries(directory: Path) -> dict[str, int]:
    """How many entries each directory holds."""
    return {name: len(list((directory / name).rglob("*.kv"))) for name in "abc"}


def test_two_copies_of_everything(tmp_path: Path) -> None:
    """Two of three directories hold each entry, and any one may be removed; a second engine finds all."""
    config = from_yaml(tmp_path, REPLICATED)
    store = open_store(config, NAMESPACE)
    assert put(store, KEY, VALUE) is Outcome.HIT
    assert put(store, OTHER, VALUE) is Outcome.HIT
    assert sum(entries(tmp_path).values()) == 4
    shutil.rmtree(tmp_path / "a")
    other = open_store(config, NAMESPACE)
    for one in (store, other):
        assert get(one, KEY, len(VALUE)) == (Outcome.HIT, VALUE)
        assert get(one, OTHER, len(VALUE)) == (Outcome.HIT, VALUE)
        assert one.id == store_settings(config, Path("/"))["id"]
        one.close()


def test_the_way_through_layers(tmp_path: Path) -> None:
    """A near directory over copies on two others, all from a file: an entry is in all three when the store is
    closed; of one that the near directory has lost it gets a new copy by a read."""
    text = """\
cache:
  store:
    kind: layered
    write: back
    members:
      - path: a
      - {kind: replicated, members: [{path: b}, {path: c}]}
"""
    config = from_yaml(tmp_path, text)
    store = open_store(config, NAMESPACE)
    put(store, KEY, VALUE)
    store.close()
    assert entries(tmp_path) == {"a": 1, "b": 1, "c": 1}
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "a").mkdir()
    again = open_store(config, NAMESPACE)
    assert isinstance(again, ComposedStore)
    assert get(again, KEY, len(VALUE)) == (Outcome.HIT, VALUE)
    settle(again)
    assert entries(tmp_path)["a"] == 1
    again.close()


def test_a_member_that_cannot_be_opened_is_opened_later(tmp_path: Path) -> None:
    """A file stands where one of three directories should be: the store opens all the same, and uses the
    directory once it can be made."""
    (tmp_path / "b").write_text("in the way")
    config = from_yaml(tmp_path, REPLICATED)
    store = open_store(config, NAMESPACE)
    assert put(store, KEY, VALUE) is Outcome.HIT
    (tmp_path / "b").unlink()
    _until_used(store, tmp_path / "b")
    store.close()


def _until_used(store: Store, directory: Path) -> None:
    """Put entries until some are in the directory; the breaker's pauses are real."""
    deadline_s = time.monotonic() + 120
    number = 0
    while not list(directory.rglob("*.kv")):
        assert time.monotonic() < deadline_s
        number += 1
        put(store, number.to_bytes(4, "big"), VALUE)
        time.sleep(0.01)


def test_a_store_without_any_member_cannot_be_opened(tmp_path: Path) -> None:
    """Files stand where all directories should be: said as of a single directory, each by name."""
    for name in "abc":
        (tmp_path / name).write_text("in the way")
    with pytest.raises(StoreError, match=r"a is not a directory; .*b is not a dir.*c is not a directory"):
        open_store(from_yaml(tmp_path, REPLICATED), NAMESPACE)


def test_a_closed_store_is_closed_throughout(tmp_path: Path) -> None:
    """Members that are opened later, or never, are closed with it."""
    (tmp_path / "b").write_text("in the way")
    store = open_store(from_yaml(tmp_path, REPLICATED), NAMESPACE)
    store.close()
    assert exists(store, KEY) is Outcome.ERROR


GUIDE = Path(__file__).parents[3] / "docs/guides/ha.md"


@pytest.mark.parametrize("number", [0, 1])
def test_the_configurations_of_the_guide(tmp_path: Path, number: int) -> None:
    """Both are opened as they stand in the guide, but below a directory of the test, and serve what was
    stored after any one of their directories was lost."""
    text = re.findall(r"^```yaml\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)[number]
    config = from_yaml(tmp_path, text.replace("/mnt/", f"{tmp_path}/mnt/"))
    store = open_store(config, NAMESPACE)
    directories = sorted((tmp_path / "mnt").iterdir())
    assert len(directories) == 3
    for directory in directories:
        key = directory.name.encode()
        assert put(store, key, VALUE) is Outcome.HIT
        shutil.rmtree(directory)
        assert get(store, key, len(VALUE)) == (Outcome.HIT, VALUE)
        directory.mkdir()
    store.close()
