"""Objects that are not what was stored, large ones, and old ones, on a real S3 server."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import obstore
import pytest
from obstore.store import S3Store as Client

from anbar.adapters.store import allowance
from anbar.adapters.store.buffers import as_bytes
from anbar.adapters.store.quarantine import MAX_FILES
from anbar.adapters.store.record import HEADER_BYTES
from anbar.adapters.store.requests import RequestLoop
from anbar.adapters.store.s3 import S3Store, S3StoreConfig, damaged
from anbar.adapters.store.s3.damaged import Damaged, damaged_name
from anbar.adapters.store.s3.objects import Limits, Objects
from anbar.adapters.store.s3.reading import Reading
from anbar.adapters.store.s3.sweep import Sweep
from anbar.testing.store_contract import KEY, OTHER, TIMEOUT_S, VALUE, exists, get, put
from anbar.tier.scopes import ScopeRules, Scopes
from anbar.tier.store import Outcome
from tests.integration.s3.conftest import Opener
from tests.s3_server import S3Server

LARGE = bytes(range(256)) * 48 * 1024
"""12 MiB: three parts of 5 MiB."""


class Bucket:
    """The objects of one store, seen without it."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    def names(self) -> set[str]:
        return {meta["path"] for meta in obstore.list(self._client, self._prefix).collect()}

    def name(self) -> str:
        (name,) = self.names()
        return name

    def read(self, name: str) -> bytearray:
        return bytearray(obstore.get(self._client, name).bytes())

    def write(self, name: str, data: bytes) -> None:
        obstore.put(self._client, name, data)

    def e_tag(self, name: str) -> str | None:
        return obstore.head(self._client, name)["e_tag"]


@pytest.fixture
def bucket(s3: S3Server, config: S3StoreConfig) -> Bucket:
    return Bucket(s3.client(), config.place.prefix)


@pytest.mark.parametrize("offset", [0, 7, 8, 24, 40, 72, 80, HEADER_BYTES, HEADER_BYTES + 9, -1])
def test_a_flipped_bit_is_damage(opener: Opener, bucket: Bucket, offset: int) -> None:
    """One bit of each field of the header, of which the format's version is one, or of the payload: CORRUPT,
    kept aside as it is, and the key can be stored again."""
    store = opener()
    put(store, KEY, VALUE)
    name = bucket.name()
    data = bucket.read(name)
    data[offset] ^= 0x10
    bucket.write(name, data)
    assert get(store, KEY, len(VALUE))[0] is Outcome.CORRUPT
    assert bucket.names() == {damaged_name(name)}
    assert bucket.read(damaged_name(name)) == data
    assert put(store, KEY, VALUE) is Outcome.HIT
    assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES, HEADER_BYTES + len(VALUE) - 1])
def test_a_short_object_is_damage(opener: Opener, bucket: Bucket, size: int) -> None:
    """Something cut an object: the read finds it and takes it away; a put replaces it without a read."""
    store = opener()
    put(store, KEY, VALUE)
    name = bucket.name()
    whole = bucket.read(name)
    bucket.write(name, whole[:size])
    assert get(store, KEY, len(VALUE))[0] is Outcome.CORRUPT
    assert bucket.names() == {damaged_name(name)}
    assert bucket.read(damaged_name(name)) == whole[:size]
    bucket.write(name, whole[:size])
    assert put(store, KEY, VALUE) is Outcome.HIT
    assert bucket.read(name) == whole


def test_anothers_object_is_damage(opener: Opener, bucket: Bucket) -> None:
    """Two whole objects that changed places: of two keys, two tenants and two models. None verifies where it
    is now."""
    one, two = opener(b"one"), opener(b"two")
    put(one, KEY, VALUE)
    first = bucket.name()
    for store, key, scope in ((one, OTHER, ""), (one, KEY, "tenant"), (two, KEY, "")):
        before = bucket.names()
        put(store, key, VALUE, scope)
        (second,) = bucket.names() - before
        bucket.write(second, bucket.read(first))
        assert get(store, key, len(VALUE), scope)[0] is Outcome.CORRUPT
    assert get(one, KEY, len(VALUE)) == (Outcome.HIT, VALUE)


def test_what_is_there_is_not_uploaded_again(opener: Opener, bucket: Bucket) -> None:
    """A second engine stores the same key: a success, and the object is the first one's, which the test marks
    by a bit."""
    store = opener()
    put(store, KEY, VALUE)
    data = bucket.read(bucket.name())
    data[-1] ^= 1
    bucket.write(bucket.name(), data)
    assert put(store, KEY, VALUE) is Outcome.HIT
    assert bucket.read(bucket.name()) == data


def test_a_large_value_goes_in_parts(opener: Opener, bucket: Bucket) -> None:
    """Above `part_bytes` it is written in parts and read in ranges: the same bytes, one object; damage in the
    last part, or an end within the first or the second, is found and taken away; the last is what is kept."""
    store = opener()
    assert put(store, KEY, LARGE) is Outcome.HIT
    assert get(store, KEY, len(LARGE)) == (Outcome.HIT, LARGE)
    name = bucket.name()
    whole = bucket.read(name)
    flipped = whole.copy()
    flipped[-1] ^= 1
    for spoiled in (flipped, whole[:1000], whole[: 7 * 1024**2], b""):
        bucket.write(name, spoiled)
        assert get(store, KEY, len(LARGE))[0] is Outcome.CORRUPT
        assert bucket.names() == {damaged_name(name)}
        assert bucket.read(damaged_name(name)) == spoiled


def test_namespaces_never_meet_but_a_purge_meets_all(opener: Opener, bucket: Bucket) -> None:
    """Two models in one bucket miss each other's entries; removing a tenant removes both models' of it."""
    one, two = opener(b"one"), opener(b"two")
    put(one, KEY, VALUE, "tenant")
    assert exists(two, KEY, "tenant") is Outcome.MISS
    put(two, KEY, VALUE, "tenant")
    put(two, KEY, VALUE, "other")
    assert two.delete_scope("tenant", timeout_s=TIMEOUT_S) is Outcome.HIT
    assert exists(one, KEY, "tenant") is Outcome.MISS
    assert exists(two, KEY, "tenant") is Outcome.MISS
    assert len(bucket.names()) == 1


def test_an_old_entry_is_a_miss_and_is_written_anew(opener: Opener, bucket: Bucket) -> None:
    """Once past `ttl_s` an entry is not there for anybody, and storing the key again replaces it."""
    put(opener(), KEY, VALUE)
    data = bucket.read(bucket.name())
    data[-1] ^= 1
    bucket.write(bucket.name(), data)
    later = opener(now_s=lambda: 1e11, ttl_s=60.0)
    assert exists(later, KEY) is Outcome.MISS
    assert get(later, KEY, len(VALUE))[0] is Outcome.MISS
    assert later.delete([KEY], scope="", timeout_s=TIMEOUT_S) == [Outcome.MISS]
    assert put(later, KEY, VALUE) is Outcome.HIT
    assert get(opener(), KEY, len(VALUE)) == (Outcome.HIT, VALUE)


def test_a_scope_has_an_age_of_its_own(opener: Opener, config: S3StoreConfig, bucket: Bucket) -> None:
    """A tenant's entries count for ten minutes, those of others for a year: later the tenant's is a miss and
    is collected, the others are there."""
    scopes = Scopes(named={"tenant": ScopeRules(ttl_s=600.0)})
    one = opener(scopes=scopes, ttl_s=None)
    for scope in ("tenant", "other"):
        put(one, KEY, VALUE, scope)
    hour = time.time() + 3600
    later = opener(now_s=lambda: hour, scopes=scopes, ttl_s=365 * 86_400.0)
    assert exists(later, KEY, "tenant") is Outcome.MISS
    assert get(later, KEY, len(VALUE), "other") == (Outcome.HIT, VALUE)
    assert exists(one, KEY, "tenant") is Outcome.HIT

    async def collect() -> None:
        objects = Objects(later._limits)
        objects.connect(config.place, TIMEOUT_S)
        await Sweep(later.layout).once(objects, later._limits)

    asyncio.run(collect())
    assert len(bucket.names()) == 1


def test_what_is_old_is_collected_and_told(opener: Opener, config: S3StoreConfig, bucket: Bucket) -> None:
    """A pass over 1,200 objects, more than a page: with nothing too old it counts them; later it removes all,
    also another model's and an earlier format version's, and tells the keys of its own. What is beside them,
    or a later version's, is left alone."""
    one, two = opener(b"one"), opener(b"two")
    keys = [index.to_bytes(4, "big") for index in range(2)]
    for key in keys:
        put(one, key, VALUE)
    put(two, KEY, VALUE)
    for index in range(1200):
        version = "v1" if index else "v0"
        bucket.write(f"{config.place.prefix}/{version}/{'0' * 32}/{'0' * 32}/00/{index:08x}.kv", b"x")
    others = {f"{config.place.prefix}/{name}" for name in ("v2/x/00.kv", "notes/v1/00.kv")}
    for name in others:
        bucket.write(name, b"x")

    async def pass_over(now_s: float) -> Sweep:
        sweep = Sweep(one.layout)
        objects = Objects(limits := Limits(config.part_bytes, 60.0, lambda: now_s))
        objects.connect(config.place, TIMEOUT_S)
        await sweep.once(objects, limits)
        return sweep

    early = asyncio.run(pass_over(0.0))
    assert early.take_evicted() == []
    assert early.stats().num_entries == 1203
    assert early.stats().used_bytes == 1200 + 3 * (HEADER_BYTES + len(VALUE))
    late = asyncio.run(pass_over(1e11))
    assert set(late.take_evicted()) == set(keys)
    assert late.take_evicted() == []
    assert late.stats().num_entries == 0
    assert bucket.names() == others


def spoil(bucket: Bucket, store: S3Store, key: bytes, scope: str = "") -> str:
    """Store an entry and flip a bit of it; its name."""
    before = bucket.names()
    put(store, key, VALUE, scope)
    (name,) = bucket.names() - before
    data = bucket.read(name)
    data[-1] ^= 1
    bucket.write(name, data)
    return name


def damage(bucket: Bucket, store: S3Store, key: bytes, scope: str = "") -> str:
    """The same, and read it."""
    name = spoil(bucket, store, key, scope)
    assert get(store, key, len(VALUE), scope)[0] is Outcome.CORRUPT
    return name


class Copying(Objects):
    """Does something else than copying."""

    def __init__(self, config: S3StoreConfig, instead: Callable[[], None] | None) -> None:
        super().__init__(Limits(config.part_bytes, None, float))
        self.connect(config.place, TIMEOUT_S)
        self._instead = instead
        self.num_copies = 0

    async def copy(self, name: str, to: str) -> Outcome:
        self.num_copies += 1
        if self._instead is None:
            await asyncio.Event().wait()
            raise AssertionError("nothing ends this")
        self._instead()
        return Outcome.ERROR


@pytest.fixture
def loop() -> Iterator[RequestLoop]:
    loop = RequestLoop(1, "test")
    loop.start()
    yield loop
    loop.close()


def take(loop: RequestLoop, objects: Objects, name: str, e_tag: str | None) -> None:
    """What a store does with a damaged object that it has read."""
    reading = Reading(KEY, "", name, as_bytes(memoryview(bytearray(len(VALUE)))))
    reading.e_tag = e_tag
    Damaged(objects, loop).take([reading], time.monotonic() + TIMEOUT_S)


def test_a_damaged_object_that_was_replaced_stays(
    opener: Opener, config: S3StoreConfig, bucket: Bucket, loop: RequestLoop
) -> None:
    """Between the read of a damaged object and its removal somebody stored a good one: that one stays, and no
    copy is made."""
    name = spoil(bucket, opener(), KEY)
    e_tag = bucket.e_tag(name)
    good = b"g" * len(bucket.read(name))
    bucket.write(name, good)
    objects = Copying(config, lambda: None)
    take(loop, objects, name, e_tag)
    assert (bucket.names(), objects.num_copies) == ({name}, 0)
    assert bucket.read(name) == good


def test_replaced_while_it_is_copied(
    opener: Opener, config: S3StoreConfig, bucket: Bucket, loop: RequestLoop
) -> None:
    """That one stays too."""
    name = spoil(bucket, opener(), KEY)
    good = b"g" * len(bucket.read(name))
    take(loop, Copying(config, lambda: bucket.write(name, good)), name, bucket.e_tag(name))
    assert bucket.read(name) == good


@pytest.mark.parametrize("instead", [None, lambda: None], ids=["hangs", "fails"])
def test_what_cannot_be_copied_is_removed(
    opener: Opener,
    config: S3StoreConfig,
    bucket: Bucket,
    loop: RequestLoop,
    monkeypatch: pytest.MonkeyPatch,
    instead: Callable[[], None] | None,
) -> None:
    """A copy has a share of the call's deadline; the rest is for removing."""
    monkeypatch.setattr(damaged, "_SHARE_TO_KEEP", 0.1)
    name = spoil(bucket, opener(), KEY)
    objects = Copying(config, instead)
    take(loop, objects, name, bucket.e_tag(name))
    assert (bucket.names(), objects.num_copies) == (set(), 1)


def test_no_more_than_some(opener: Opener, bucket: Bucket) -> None:
    """Of many damaged ones that one call finds, the rest is removed."""
    store = opener()
    keys = [b"%036d" % index for index in range(MAX_FILES + 3)]
    names = {spoil(bucket, store, key) for key in keys}
    buffers = [memoryview(bytearray(len(VALUE))) for _ in keys]
    found = store.get_into(keys, buffers, scope="", timeout_s=TIMEOUT_S)
    assert found == [Outcome.CORRUPT] * len(keys)
    assert len(bucket.names()) == MAX_FILES
    assert bucket.names() < {damaged_name(name) for name in names}


def test_none_that_is_too_large(opener: Opener, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the bytes that it has in the bucket, which are more than were asked for."""
    monkeypatch.setattr(allowance, "MAX_BYTES", HEADER_BYTES + len(VALUE))
    store = opener()
    put(store, KEY, VALUE)
    name = bucket.name()
    bucket.write(name, bucket.read(name) + b"?")
    assert get(store, KEY, len(VALUE))[0] is Outcome.CORRUPT
    assert bucket.names() == set()


def test_what_is_kept_is_purged_with_its_scope(opener: Opener, bucket: Bucket) -> None:
    """Of all models; a neighbour's stays."""
    one, two = opener(b"one"), opener(b"two")
    damage(bucket, one, KEY, "tenant")
    damage(bucket, two, KEY, "tenant")
    kept = damage(bucket, one, KEY, "neighbour")
    assert two.delete_scope("tenant", timeout_s=TIMEOUT_S) is Outcome.HIT
    assert bucket.names() == {damaged_name(kept)}
    assert two.delete_scope("tenant", timeout_s=TIMEOUT_S) is Outcome.MISS


@pytest.mark.parametrize("ttl_s", [None, 365 * 86_400.0, 60.0])
def test_what_is_kept_ends(
    opener: Opener,
    config: S3StoreConfig,
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
    ttl_s: float | None,
) -> None:
    """After a week, whatever the age of whole entries, or by the age of its scope. It is no entry that is
    counted or told. Where whole entries do not end, they are not listed."""
    store = opener(ttl_s=None)
    short = damaged_name(damage(bucket, store, KEY, "tenant"))
    week = damaged_name(damage(bucket, store, KEY, "other"))
    assert put(store, OTHER, VALUE) is Outcome.HIT
    (entry,) = bucket.names() - {short, week}
    scopes = Scopes(named={"tenant": ScopeRules(ttl_s=600.0)} if ttl_s else {})
    started_s = time.time()
    told: list[bytes] = []
    listed: list[str] = []

    def left_after(later_s: float) -> set[str]:
        later = S3Store(replace(config, ttl_s=ttl_s, scopes=scopes), b"model", lambda: started_s + later_s)
        objects = Objects(later._limits)
        objects.connect(config.place, TIMEOUT_S)
        pages = objects.pages
        sweep = Sweep(later.layout)
        monkeypatch.setattr(objects, "pages", lambda prefix: listed.append(prefix) or pages(prefix))
        asyncio.run(sweep.once(objects, later._limits))
        left = bucket.names()
        assert sweep.stats().num_entries == (None if ttl_s is None else len(left & {entry}))
        told.extend(sweep.take_evicted())
        return left

    whole = set() if ttl_s == 60.0 else {entry}
    assert left_after(3600) == whole | {week} | (set() if ttl_s else {short})
    assert left_after(8 * 86_400) == whole
    assert told == ([] if whole else [OTHER])
    root = config.place.prefix
    assert set(listed) == {f"{root}/v1/damaged" if ttl_s is None else root}


def test_a_store_whose_entries_do_not_end_sweeps_too(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is kept aside; not where the bucket does it."""
    begun = threading.Event()

    async def run(*_: object) -> None:
        begun.set()

    monkeypatch.setattr(Sweep, "run", run)
    opener(ttl_s=None, sweep=False).close()  # ends what it began
    assert not begun.is_set()
    opener(ttl_s=None)
    assert begun.wait(TIMEOUT_S)
