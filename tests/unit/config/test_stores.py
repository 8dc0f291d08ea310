"""`cache.store` made of stores: what is refused, and what engines and router make of it."""

from pathlib import Path

import pytest

from anbar.config.load import load
from anbar.config.store_checks import read_store
from anbar.config.stores import StoreConfig, StoreKind, members_of, store_settings
from anbar.core.errors import ConfigError

LAYERS = """\
cache:
  store:
    kind: layered
    write: back
    members:
      - {path: near, capacity_bytes: 1GiB}
      - kind: replicated
        members:
          - {path: /mnt/a}
          - {path: /mnt/b}
          - {path: c, id: third, timeout_s: 1.0}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "anbar.yaml"
    path.write_text(text)
    return path


def complaint(tmp_path: Path, store: str) -> str:
    """The one problem of a store, as the user sees it."""
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, f"cache: {{store: {store}}}"))
    return str(caught.value).replace(f"{tmp_path}/anbar.yaml:1: ", "")


def test_layers_over_copies(tmp_path: Path) -> None:
    """Two layers, the further one with two copies on three directories: paths are made absolute on every
    level, values know their line, and the settings are what an engine reads back."""
    loaded = load(written(tmp_path, LAYERS))
    store = loaded.config.cache.store
    near, copies = store.members
    assert near.path == tmp_path / "near"
    assert copies.members[2].path == tmp_path / "c"
    assert loaded.origins["cache.store.members[1].members[2].id"] == f"{tmp_path / 'anbar.yaml'}:11"
    settings = store_settings(store, Path("/state"))
    again = read_store(settings)
    assert store_settings(again, Path("/elsewhere")) == settings
    assert again.members[1].copies == 2
    assert again.members[0].capacity_bytes == 2**30


def test_ids_follow_from_the_members() -> None:
    """The same members in another order: the same replicated store, another layered one."""
    a, b = StoreConfig(path=Path("/a")), StoreConfig(path=Path("/b"))

    def id_of(kind: StoreKind, *members: StoreConfig) -> str:
        id = store_settings(StoreConfig(kind=kind, members=members), Path("/state"))["id"]
        assert isinstance(id, str)
        return id

    assert id_of(StoreKind.REPLICATED, a, b) == id_of(StoreKind.REPLICATED, b, a)
    assert id_of(StoreKind.LAYERED, a, b) != id_of(StoreKind.LAYERED, b, a)
    assert id_of(StoreKind.LAYERED, a, b).startswith("layered-")


def test_every_store_has_its_key() -> None:
    """The whole, then its members in order, each with the key that messages name."""
    leaf = StoreConfig(path=Path("/a"))
    inner = StoreConfig(kind=StoreKind.LAYERED, members=(leaf, leaf))
    keys = [key for key, _ in members_of(StoreConfig(kind=StoreKind.REPLICATED, members=(leaf, inner)))]
    store = ("cache", "store")
    assert keys == [
        store,
        (*store, "members", 0),
        (*store, "members", 1),
        (*store, "members", 1, "members", 0),
        (*store, "members", 1, "members", 1),
    ]


TWO = "members: [{path: /a}, {path: /b}]"
DEEP = "{kind: layered, members: [{path: /z}, {kind: layered, members: [{path: /y}, {kind: layered, %s}]}]}"


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        (
            "{kind: replicated, members: [{path: /a}, {pth: /b}]}",
            "cache.store.members[1].pth: unknown key; did you mean `path`?",
        ),
        (
            "{kind: replicated, members: [{path: /a}, {kind: files}]}",
            "cache.store.members[1].path: is required and not given",
        ),
        (
            "{kind: replicated, members: [{path: /a}, {path: ''}]}",
            "cache.store.members[1].path: is ''; allowed: not empty",
        ),
        ("{kind: layered}", "cache.store.members: has 0; kind layered needs at least 2"),
        ("{kind: layered, members: [{path: /a}]}", "members: has 1; kind layered needs at least 2"),
        (f"{{kind: replicated, copies: 3, {TWO}}}", "members: has 2; copies: 3 needs at least 3"),
        (f"{{kind: replicated, copies: 0, {TWO}}}", "copies: is 0; allowed: at least 1"),
        (f"{{{TWO}}}", "cache.store.members: is not for a store of kind files"),
        (f"{{kind: layered, copies: 3, {TWO}}}", "copies: is not for a store of kind layered"),
        (f"{{kind: replicated, write: back, {TWO}}}", "write: is not for a store of kind replicated"),
        (f"{{kind: layered, path: /x, {TWO}}}", "path: is not for a store of kind layered; give it to its"),
        (f"{{kind: layered, capacity_bytes: 1GiB, {TWO}}}", "capacity_bytes: is not for a store of kind"),
        (
            "{kind: layered, members: [{path: /a}, {path: /b/../a}]}",
            "cache.store.members[1].path: is the directory of cache.store.members[0] too",
        ),
        (
            "{kind: layered, members: [{path: /a, id: x}, {path: /b, id: x}]}",
            "cache.store.members[1].id: gives two stores the name 'x': cache.store.members[0] has it",
        ),
        (
            "{kind: layered, id: x, members: [{path: /a, id: x}, {path: /b}]}",
            "cache.store.members[0].id: gives two stores the name 'x': cache.store has it",
        ),
        (
            DEEP % TWO,
            "cache.store.members[1].members[1].kind: is layered on level 3; allowed there: a store that is",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, store: str, expected: str) -> None:
    """Each with the key of the member that is wrong."""
    assert expected in complaint(tmp_path, store)


def test_a_store_cannot_hold_itself(tmp_path: Path) -> None:
    """An alias of the store among its own members is refused, not followed for ever."""
    text = "cache: {store: &me {kind: layered, members: [{path: /a}, *me]}}"
    with pytest.raises(ConfigError, match=r":1: cache\.store\.members\[1\]: holds itself"):
        load(written(tmp_path, text))


def test_an_engine_reads_what_it_is_given() -> None:
    """Plain data that no anbar.yaml was read from: each thing that is wrong is named."""
    with pytest.raises(ConfigError, match=r"members has 1; copies: 2 .*; store\.members\[0\]\.path is req"):
        read_store({"kind": "replicated", "members": [{}]})
    with pytest.raises(ConfigError, match=r"store\.path is required and not given"):
        read_store({})
    with pytest.raises(ConfigError, match=r"store\.members\[0\]\.kind is 'ceph'; allowed: files"):
        read_store({"kind": "layered", "members": [{"kind": "ceph"}]})
