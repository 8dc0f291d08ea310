"""What must agree between the values of `cache.store`. Pure."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from anbar.config.problems import KeyPath, Problem, dotted, from_pydantic
from anbar.config.stores import COMPOSED, StoreConfig, StoreKind, members_of, store_settings
from anbar.config.valkey_checks import check_valkey
from anbar.core.errors import ConfigError

MAX_LEVELS = 3
"""Layers over copies over single stores: more than that has no use, and divides deadlines into crumbs."""

_STATE_DIR = Path("/")
"""Stands for the state directory, which only a store without members and without a path needs."""


def read_store(settings: Mapping[str, object]) -> StoreConfig:
    """A store from plain data, as an engine gets it. Raises ConfigError naming each key that is wrong."""
    root: KeyPath = ("store",)
    try:
        store = StoreConfig.model_validate(settings)
    except ValidationError as error:
        found = from_pydantic(error.errors(include_url=False), StoreConfig)
        problems = [Problem((*root, *problem.path), problem.message) for problem in found]
        raise _wrong(problems) from None
    problems = list(check_store(store, root))
    if store.kind is StoreKind.FILES and store.path is None:
        problems.append(Problem((*root, "path"), "is required and not given"))
    if problems:
        raise _wrong(problems)
    return store


def _wrong(problems: list[Problem]) -> ConfigError:
    return ConfigError("; ".join(f"{dotted(problem.path)} {problem.message}" for problem in problems))


def check_store(store: StoreConfig, path: KeyPath = ("cache", "store")) -> Iterator[Problem]:
    """All problems between values of a store and of those that it is made of."""
    for key, one in members_of(store, path):
        yield from _fields(key, one)
        yield from _s3(key, one)
        if one.kind in COMPOSED:
            yield from _members(key, one, level=1 + (len(key) - len(path)) // 2)
    yield from _twice(store, path)


def _fields(path: KeyPath, store: StoreConfig) -> Iterator[Problem]:
    """Values that mean nothing for a store of this kind."""
    meant = {
        "path": store.kind is StoreKind.FILES,
        "capacity_bytes": store.kind is StoreKind.FILES,
        "s3": store.kind is StoreKind.S3,
        "ttl_s": store.kind is StoreKind.FILES,
        "valkey": store.kind is StoreKind.VALKEY,
        "members": store.kind in COMPOSED,
        "copies": store.kind is StoreKind.REPLICATED,
        "write": store.kind is StoreKind.LAYERED,
    }
    for key, is_meant in meant.items():
        if not is_meant and getattr(store, key) != StoreConfig.model_fields[key].default:
            yield Problem((*path, key), f"is not for a store of kind {store.kind}{_instead(key, store)}")
    if store.kind is StoreKind.VALKEY and store.valkey is None:
        yield Problem((*path, "valkey"), "is required with kind valkey and not given")
    if store.valkey is not None:
        for problem in check_valkey(store.valkey):
            yield Problem((*path, "valkey", *problem.path), problem.message)


def _s3(path: KeyPath, store: StoreConfig) -> Iterator[Problem]:
    if store.s3 is None:
        if store.kind is StoreKind.S3:
            yield Problem((*path, "s3"), "is required and not given: at least `bucket`")
    elif (store.s3.endpoint or "").startswith("http://") and not store.s3.allow_http:
        text = f"is {store.s3.endpoint}; allowed: https://, or `allow_http: true` beside it"
        yield Problem((*path, "s3", "endpoint"), text)


def _instead(key: str, store: StoreConfig) -> str:
    own = {
        (StoreKind.VALKEY, "capacity_bytes"): "the server's own setting is `maxmemory`",
        (StoreKind.VALKEY, "ttl_s"): "its own is `valkey.ttl_s`",
        (StoreKind.S3, "capacity_bytes"): "what a bucket holds is bounded by `s3.ttl_s`",
        (StoreKind.S3, "ttl_s"): "its own is `s3.ttl_s`",
    }
    if key in {"path", "capacity_bytes", "ttl_s"} and store.kind in COMPOSED:
        return "; give it to its members"
    return f"; {own[store.kind, key]}" if (store.kind, key) in own else ""


def _members(path: KeyPath, store: StoreConfig, level: int) -> Iterator[Problem]:
    if level >= MAX_LEVELS:
        yield Problem(
            (*path, "kind"), f"is {store.kind} on level {level}; allowed there: a store that is made of none"
        )
    need = store.copies if store.kind is StoreKind.REPLICATED else 2
    if len(store.members) < need:
        what = f"copies: {store.copies}" if store.kind is StoreKind.REPLICATED else f"kind {store.kind}"
        yield Problem((*path, "members"), f"has {len(store.members)}; {what} needs at least {need}")
    for index, member in enumerate(store.members):
        if member.kind is StoreKind.FILES and member.path is None:
            yield Problem((*path, "members", index, "path"), "is required and not given")


def _twice(store: StoreConfig, path: KeyPath) -> Iterator[Problem]:
    """Two stores that could not be told apart, or are the same."""
    ids: dict[str, KeyPath] = {}
    dirs: dict[str, KeyPath] = {}
    for key, one in members_of(store, path):
        if one.path is not None:
            directory = os.path.normpath(one.path)
            if directory in dirs:
                yield Problem((*key, "path"), f"is the directory of {dotted(dirs[directory])} too")
                continue
            dirs[directory] = key
        elif one.kind is StoreKind.FILES:
            continue  # said already, or the only one
        id = store_settings(one, _STATE_DIR)["id"]
        if id in ids:
            yield Problem((*key, "id"), f"gives two stores the name {id!r}: {dotted(ids[id])} has it")
        ids.setdefault(id, key)
