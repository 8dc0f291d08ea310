"""The wire of vLLM's KV events: golden payloads of every release, and no input that breaks the decoder.

The payloads are in `tests/golden/kv_events.json`; `tests/golden/make_kv_events.py` says where each comes
from.
"""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.adapters.vllm.kv_wire import (
    END_SEQ,
    Message,
    decode_message,
    live_message,
    replay_message,
    replay_request,
)
from anbar.core.errors import WireError
from anbar.core.events import AllCleared, BlocksRemoved, BlocksStored, KvBatch, KvEvent, Tier, Unknown
from anbar.core.ids import EngineHash, EngineId, RequestId
from anbar.core.request import RouteQuery
from anbar.route import EngineProfile, PrefixIndex
from tests import golden

GOLDEN: dict[str, dict[str, str]] = json.loads((golden.FOLDER / "kv_events.json").read_text())


def h(number: int) -> EngineHash:
    return EngineHash(number.to_bytes(8, "big"))


DIGEST = EngineHash(bytes(range(32)))
LAST = h(2**64 - 1)

TOKENS = (1, 2, 3, 4)
PLAIN = BlocksStored((h(1), LAST), None, TOKENS, 2, Tier.DEVICE)
SALTED = replace(PLAIN, extra_keys=(("salt-a",), ()))
DIGESTS = BlocksStored((DIGEST,), EngineHash(DIGEST[::-1]), (9, 8), 2, Tier.DEVICE)
ADAPTED = replace(PLAIN, parent=h(7), lora="ad")
HOST = BlocksStored((h(5),), None, (), 0, Tier.HOST)
FILES = BlocksStored((h(5),), None, (), 0, Tier.SHARED)

EXPECTED: dict[tuple[str, str], tuple[KvEvent, ...]] = {
    ("0.9", "device"): (PLAIN,),
    ("0.9", "removed"): (BlocksRemoved((LAST,), Tier.DEVICE),),
    ("0.11", "device"): (PLAIN,),
    ("0.11", "device_bytes"): (DIGESTS,),
    ("0.11", "host_placeholder"): (HOST,),
    ("0.11", "removed"): (BlocksRemoved((DIGEST,), Tier.DEVICE), BlocksRemoved((h(5),), Tier.HOST)),
    ("0.15", "device_lora"): (ADAPTED,),
    ("2026-03", "device"): (SALTED,),
    ("2026-03", "groups"): (
        replace(PLAIN, extra_keys=((), ()), group=1),
        BlocksRemoved((h(1),), Tier.DEVICE, 1),
    ),
    ("2026-06", "device"): (PLAIN,),
    ("0.26", "device"): (SALTED,),
    ("0.26", "files"): (FILES,),
    ("0.26", "objects"): (FILES,),
    ("0.26", "removed"): (BlocksRemoved((h(5),), Tier.SHARED),),
    ("0.32", "device"): (SALTED,),
    ("0.32", "device_lora"): (
        replace(ADAPTED, group=1, extra_keys=(("ad", ["img", 3], "salt"), ("ad", bytes(DIGEST)))),
    ),
    ("0.32", "device_bytes"): (replace(DIGESTS, extra_keys=((),)),),
    ("0.32", "groups"): (PLAIN, replace(PLAIN, group=1), BlocksRemoved((h(1),), Tier.DEVICE, 1)),
    ("0.32", "host_placeholder"): (HOST,),
    ("0.32", "host_described"): (replace(PLAIN, tier=Tier.HOST, extra_keys=((), ())),),
    ("0.32", "shared"): (replace(PLAIN, tier=Tier.SHARED, owner="anbar:s1"),),
    ("0.32", "local_storage"): (replace(FILES, owner="fs-0"),),
    ("0.32", "removed"): (
        BlocksRemoved((h(5), DIGEST), Tier.HOST),
        BlocksRemoved((h(6),), Tier.SHARED, owner="anbar:s1"),
    ),
    ("0.32", "no_rank"): (AllCleared(),),
}
CASES = [(release, name) for release, payloads in GOLDEN.items() for name in payloads]
RANKS = {("0.11", "device_bytes"): 1}


def encoded(*events: object) -> Message:
    return Message(3, msgspec.msgpack.encode([1.0, list(events), 0]))


@pytest.mark.parametrize(("release", "name"), CASES)
def test_golden_payloads(release: str, name: str) -> None:
    """What a release's structs encode decodes to exactly what they said."""
    frames = [b"topic", (7).to_bytes(8, "big"), bytes.fromhex(GOLDEN[release][name])]
    batch = decode_message(live_message(frames))
    expected = EXPECTED.get((release, name), (AllCleared(),) if name == "cleared" else ())
    assert batch == KvBatch(7, expected, 12.5, RANKS.get((release, name), 0))


@pytest.mark.parametrize("release", [r for r, payloads in GOLDEN.items() if "device" in payloads])
def test_every_release_feeds_the_index(release: str) -> None:
    """A prompt that an engine of any release stored is found on it, with its salt where the release tells
    it; and is gone when the engine clears its cache."""
    index, engine = PrefixIndex(), EngineId("e")
    index.attach(engine, EngineProfile("m", 2))
    index.apply(engine, decode_message(Message(0, bytes.fromhex(GOLDEN[release]["device"]))), 0.0)
    salt = "salt-a" if b"salt-a" in bytes.fromhex(GOLDEN[release]["device"]) else None
    query = RouteQuery(RequestId("r"), "m", (*TOKENS, 5), 5, cache_salt=salt)
    other = RouteQuery(RequestId("r"), "m", (*TOKENS, 5), 5, cache_salt="other")
    assert index.match(query, [engine], 0.0)[engine].device == 4
    assert index.match(other, [engine], 0.0)[engine].device == 0
    cleared = GOLDEN[release].get("cleared", GOLDEN["0.32"]["cleared"])
    index.apply(engine, decode_message(Message(1, bytes.fromhex(cleared))), 0.0)
    assert index.match(query, [engine], 0.0)[engine].device == 0


def test_replay_frames_of_both_ages() -> None:
    """A replayed message is read with the topic frame and without; the end has number -1."""
    seq = (5).to_bytes(8, "big")
    assert replay_message([b"", b"topic", seq, b"x"]) == Message(5, b"x")
    assert replay_message([b"", seq, b"x"]) == Message(5, b"x")
    assert replay_message([b"", b"", b"\xff" * 8, b""]).seq == END_SEQ
    assert replay_request(258) == [b"", b"\x00" * 6 + b"\x01\x02"]


@pytest.mark.parametrize(
    "frames", [[], [b"a"], [b"", b"123", b""], [b""] * 5, [b"x", b"", b"\x00" * 8, b""]], ids=len
)
def test_replay_frames_that_are_none(frames: list[bytes]) -> None:
    """Other shapes are named as malformed."""
    with pytest.raises(WireError, match=r"replayed message|sequence number"):
        replay_message(frames)


def test_unknown_kinds_are_never_device_blocks() -> None:
    """A new event type or medium is noted as unknown, in maps and in arrays."""
    stored = {
        "type": "BlockStored",
        "block_hashes": [1],
        "medium": "HOLOGRAM",
        "block_size": 1,
        "token_ids": [1],
    }
    removed = {"type": "BlockRemoved", "block_hashes": [1], "medium": "gpu"}
    moved = {"type": "BlockMoved", "to": "moon"}
    batch = decode_message(encoded(stored, removed, moved, ["BlockMoved", 1, 2]))
    assert [type(event) for event in batch.events] == [Unknown] * 4
    assert batch.events[0] == Unknown("medium HOLOGRAM")
    assert batch.events[3] == Unknown("event BlockMoved")


def test_unknown_fields_are_ignored() -> None:
    """A new field in a map, or behind the last known one in an array, changes nothing."""
    event = {"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU", "reason": "age"}
    array = ["BlockRemoved", [1], "CPU", 0, None, None, "age", 9]
    batch = decode_message(encoded(event, array))
    assert batch.events == (BlocksRemoved((h(1),), Tier.HOST),) * 2


@pytest.mark.parametrize("medium", ["FS", "OBJ", "STORAGE"])
def test_media_of_storage(medium: str) -> None:
    """The older names of storage media mean the shared tier."""
    batch = decode_message(encoded({"type": "BlockRemoved", "block_hashes": [1], "medium": medium}))
    assert batch.events == (BlocksRemoved((h(1),), Tier.SHARED),)


def test_negative_hashes_of_older_engines() -> None:
    """Python's own hash was signed: it keeps its bit pattern."""
    batch = decode_message(encoded({"type": "BlockRemoved", "block_hashes": [-1], "medium": None}))
    assert batch.events == (BlocksRemoved((LAST,), Tier.DEVICE),)


GOOD: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [1],
    "parent_block_hash": None,
    "token_ids": [1],
    "block_size": 1,
    "medium": "GPU",
}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"type": 3}, "type"),
        ({"block_hashes": 1}, "block_hashes"),
        ({"block_hashes": ["x"]}, "block_hashes"),
        ({"block_hashes": [True]}, "block_hashes"),
        ({"block_hashes": [b""]}, "block_hashes"),
        ({"parent_block_hash": 1.5}, "parent_block_hash"),
        ({"token_ids": "abc"}, "token_ids"),
        ({"token_ids": [-1]}, "token_ids"),
        ({"token_ids": [1 << 32]}, "token_ids"),
        ({"token_ids": [True]}, "token_ids"),
        ({"block_size": -1}, "block_size"),
        ({"block_size": None}, "block_size"),
        ({"medium": 1}, "medium"),
        ({"lora_name": 1}, "lora_name"),
        ({"ownership": []}, "ownership"),
        ({"extra_keys": "x"}, "extra_keys"),
        ({"extra_keys": ["x"]}, "extra_keys"),
        ({"group_idx": "0"}, "group_idx"),
    ],
)
def test_malformed_events_name_the_field(change: dict[str, Any], named: str) -> None:
    """A wrong type in any field is refused with the field's name."""
    with pytest.raises(WireError, match=named):
        decode_message(encoded({**GOOD, **change}))


@pytest.mark.parametrize(
    "payload",
    [
        1,
        {},
        {"ts": 1.0},
        {"events": []},
        [],
        [1.0],
        ["now", []],
        [1.0, {}],
        [1.0, [], -2],
        [True, []],
        [1.0, [[]]],
        [1.0, [3]],
    ],
)
def test_malformed_batches(payload: object) -> None:
    """A payload of another shape is refused."""
    with pytest.raises(WireError):
        decode_message(Message(0, msgspec.msgpack.encode(payload)))


def test_deep_nesting_is_refused() -> None:
    """A payload nested deeper than the decoder goes is malformed, not a crash."""
    with pytest.raises(WireError):
        decode_message(Message(0, b"\x91" * 100_000 + b"\x00"))


@given(st.lists(st.binary(max_size=64), max_size=5))
def test_any_frames_decode_or_raise_wire_error(frames: list[bytes]) -> None:
    """No frames make the decoder raise anything but WireError."""
    for read in (live_message, replay_message):
        try:
            decode_message(read(frames))
        except WireError:
            continue


WORDS = st.sampled_from(
    ["", "GPU", "CPU", "STORAGE", "type", "BlockStored", "BlockRemoved", "انبار", "x" * 99]
)
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | WORDS | st.binary()
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.integers(0, 9), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*GOOD, "group_idx", "extra_keys", "lora_name", "ownership"]), VALUES))
def test_any_field_values_decode_or_raise_wire_error(fields: dict[str, object]) -> None:
    """Whatever stands in an event's fields, the decoder raises WireError or nothing, and unknown media never
    become device blocks."""
    message = encoded({**GOOD, **fields})
    try:
        batch = decode_message(message)
    except WireError:
        return
    (event,) = batch.events
    if isinstance(event, BlocksStored) and event.tier is Tier.DEVICE:
        assert fields.get("medium", "GPU") in ("GPU", None)


@given(VALUES)
def test_any_msgpack_decodes_or_raises_wire_error(value: object) -> None:
    """Valid msgpack of another shape is no exception either."""
    for payload in (value, [1.0, value, 0], [1.0, [value], 0]):
        try:
            decode_message(Message(0, msgspec.msgpack.encode(payload)))
        except WireError:
            continue


@given(st.binary(max_size=80))
def test_corrupt_payloads_decode_or_raise_wire_error(tail: bytes) -> None:
    """A golden payload with its end replaced by any bytes is no exception either."""
    whole = bytes.fromhex(GOLDEN["0.32"]["device_lora"])
    for cut in (2, 12, 40, 90, len(whole) - 5):
        try:
            decode_message(Message(0, whole[:cut] + tail))
        except WireError:
            continue
