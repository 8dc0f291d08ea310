"""Objects that are not what was stored, large ones, and old ones, on a real S3 server."""

import asyncio
import time

import obstore
import pytest
from obstore.store import S3Store as Client

from anbar.adapters.store.record import HEADER_BYTES
from anbar.adapters.store.s3 import S3StoreConfig
from anbar.adapters.store.s3.objects import Limits, Objects
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
    removed, and the key can be stored again."""
    store = opener()
    put(store, KEY, VALUE)
    data = bucket.read(bucket.name())
    data[offset] ^= 0x10
    bucket.write(bucket.name(), data)
    assert get(store, KEY, len(VALUE))[0] is Outcome.CORRUPT
    assert bucket.names() == set()
    assert put(store, KEY, VALUE) is Outcome.HIT
    assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES, HEADER_BYTES + len(VALUE) - 1])
def test_a_short_object_is_damage(opener: Opener, bucket: Bucket, size: int) -> None:
    """Something cut an object: the read finds it and removes it; a put replaces it without a read."""
    store = opener()
    put(store, KEY, VALUE)
    name = bucket.name()
    whole = bucket.read(name)
    bucket.write(name, whole[:size])
    assert get(store, KEY, len(VALUE))[0] is Outcome.CORRUPT
    assert bucket.names() == set()
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


def test_a_damaged_object_that_was_replaced_stays(
    s3: S3Server, config: S3StoreConfig, bucket: Bucket
) -> None:
    """Between the read of a damaged object and its removal somebody stored a good one: that one stays."""
    name = f"{config.place.prefix}/v1/object"
    bucket.write(name, b"damaged")
    damaged = bucket.e_tag(name)
    bucket.write(name, b"good")
    objects = Objects(Limits(config.part_bytes, None, float))
    objects.connect(config.place, TIMEOUT_S)

    async def remove() -> Outcome:
        return await objects.delete_damaged(name, damaged, num_bytes=len(b"good"))

    asyncio.run(remove())
    assert bucket.read(name) == b"good"


def test_a_large_value_goes_in_parts(opener: Opener, bucket: Bucket) -> None:
    """Above `part_bytes` it is written in parts and read in ranges: the same bytes, one object; damage in the
    last part, or an end within the first or the second, is found and removed."""
    store = opener()
    assert put(store, KEY, LARGE) is Outcome.HIT
    assert get(store, KEY, len(LARGE)) == (Outcome.HIT, LARGE)
    name = bucket.name()
    whole = bucket.read(name)
    flipped = whole.copy()
    flipped[-1] ^= 1
    for damaged in (flipped, whole[:1000], whole[: 7 * 1024**2], b""):
        bucket.write(name, damaged)
        assert get(store, KEY, len(LARGE))[0] is Outcome.CORRUPT
        assert bucket.names() == set()


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
