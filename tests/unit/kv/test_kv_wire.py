"""The wire of vLLM's KV events: golden payloads of the real structs, and no input that breaks the decoder.

The payloads were made once in an environment with vLLM 0.32, by

    from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch def
    stored(**kw): base = dict(block_hashes=[1, 2**64 - 1], parent_block_hash=None, token_ids=[1, 2, 3, 4],
    block_size=2, lora_id=None, medium="GPU", lora_name=None) return BlockStored(**{**base, **kw}) D =
    bytes(range(32)) cases = { "device": [stored(extra_keys=[("salt-a",), None], group_idx=0,
    kv_cache_spec_kind="full_attention", session_id="s")], "device_lora": [stored(lora_id=1,
    lora_name="ad", parent_block_hash=7, group_idx=1, extra_keys=[("ad", ("img", 3), "salt"), ("ad",)])],
    "device_bytes": [stored(block_hashes=[D], parent_block_hash=D[::-1], token_ids=[9, 8],
    extra_keys=[None], group_idx=0)], "host_placeholder": [stored(block_hashes=[5], token_ids=[],
    block_size=0, medium="CPU", group_idx=0)], "shared": [stored(medium="STORAGE", group_idx=0,
    locality="REMOTE", ownership="anbar:s1")], "removed": [BlockRemoved(block_hashes=[5, D], medium="CPU",
    group_idx=0), BlockRemoved(block_hashes=[6], medium="STORAGE", locality="REMOTE",
    ownership="anbar:s1")], "cleared": [AllBlocksCleared()], } for name, events in cases.items(): batch =
    KVEventBatch(ts=12.5, events=events, data_parallel_rank=0) print(name,
    msgspec.msgpack.encode(batch).hex())

and "old" with structs of the same fields declared `array_like=True, omit_defaults=True, tag=True`, as
they were before 0.32.
"""

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
from anbar.core.ids import EngineHash

GOLDEN = {
    "device": (
        "93cb4029000000000000918ca474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739201cfffffff"
        "ffffffffffb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f7369"
        "7a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b6579739291a6"
        "73616c742d61c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e"
        "74696f6eaa73657373696f6e5f6964a17300"
    ),
    "device_lora": (
        "93cb4029000000000000918aa474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739201cfffffff"
        "ffffffffffb1706172656e745f626c6f636b5f6861736807a9746f6b656e5f6964739401020304aa626c6f636b5f7369"
        "7a6502a76c6f72615f696401a66d656469756da3475055a96c6f72615f6e616d65a26164aa65787472615f6b65797392"
        "93a2616492a3696d6703a473616c7491a26164a967726f75705f6964780100"
    ),
    "device_bytes": (
        "93cb4029000000000000918aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391c420000102"
        "030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fb1706172656e745f626c6f636b5f68617368c4"
        "201f1e1d1c1b1a191817161514131211100f0e0d0c0b0a09080706050403020100a9746f6b656e5f696473920908aa62"
        "6c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f"
        "6b65797391c0a967726f75705f6964780000"
    ),
    "host_placeholder": (
        "93cb40290000000000009189a474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739105b1706172"
        "656e745f626c6f636b5f68617368c0a9746f6b656e5f69647390aa626c6f636b5f73697a6500a76c6f72615f6964c0a6"
        "6d656469756da3435055a96c6f72615f6e616d65c0a967726f75705f6964780000"
    ),
    "shared": (
        "93cb4029000000000000918ba474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739201cfffffff"
        "ffffffffffb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f7369"
        "7a6502a76c6f72615f6964c0a66d656469756da753544f52414745a96c6f72615f6e616d65c0a967726f75705f696478"
        "00a86c6f63616c697479a652454d4f5445a96f776e657273686970a8616e6261723a733100"
    ),
    "removed": (
        "93cb40290000000000009284a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739205c42000"
        "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fa66d656469756da3435055a967726f7570"
        "5f6964780085a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739106a66d656469756da753"
        "544f52414745a86c6f63616c697479a652454d4f5445a96f776e657273686970a8616e6261723a733100"
    ),
    "cleared": ("93cb40290000000000009181a474797065b0416c6c426c6f636b73436c656172656400"),
    "old": (
        "93cb4029000000000000939aab426c6f636b53746f72656492c420000102030405060708090a0b0c0d0e0f1011121314"
        "15161718191a1b1c1d1e1f0307940102030402c0c0c092c091a178c094ac426c6f636b52656d6f7665649103a24653c0"
        "91b0416c6c426c6f636b73436c6561726564c0"
    ),
}


def h(number: int) -> EngineHash:
    return EngineHash(number.to_bytes(8, "big"))


DIGEST = EngineHash(bytes(range(32)))
LAST = h(2**64 - 1)

EXPECTED: dict[str, tuple[KvEvent, ...]] = {
    "device": (BlocksStored((h(1), LAST), None, (1, 2, 3, 4), 2, Tier.DEVICE, 0, None, (("salt-a",), ())),),
    "device_lora": (
        BlocksStored(
            (h(1), LAST), h(7), (1, 2, 3, 4), 2, Tier.DEVICE, 1, "ad", (("ad", ["img", 3], "salt"), ("ad",))
        ),
    ),
    "device_bytes": (
        BlocksStored((DIGEST,), EngineHash(DIGEST[::-1]), (9, 8), 2, Tier.DEVICE, 0, None, ((),)),
    ),
    "host_placeholder": (BlocksStored((h(5),), None, (), 0, Tier.HOST),),
    "shared": (BlocksStored((h(1), LAST), None, (1, 2, 3, 4), 2, Tier.SHARED, owner="anbar:s1"),),
    "removed": (
        BlocksRemoved((h(5), DIGEST), Tier.HOST),
        BlocksRemoved((h(6),), Tier.SHARED, owner="anbar:s1"),
    ),
    "cleared": (AllCleared(),),
    "old": (
        BlocksStored((DIGEST, h(3)), h(7), (1, 2, 3, 4), 2, Tier.DEVICE, 0, None, ((), ("x",))),
        BlocksRemoved((h(3),), Tier.SHARED),
        AllCleared(),
    ),
}


def encoded(*events: object) -> Message:
    return Message(3, msgspec.msgpack.encode([1.0, list(events), 0]))


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_golden_payloads(name: str) -> None:
    """What vLLM's own structs encode decodes to exactly what they said."""
    frames = [b"topic", (7).to_bytes(8, "big"), bytes.fromhex(GOLDEN[name])]
    batch = decode_message(live_message(frames))
    assert batch == KvBatch(7, EXPECTED[name], 12.5, 0)


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
    "payload", [1, [], [1.0], ["now", []], [1.0, {}], [1.0, [], -2], [True, []], [1.0, [[]]], [1.0, [3]]]
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
    whole = bytes.fromhex(GOLDEN["device_lora"])
    for cut in (2, 12, 40, 90, len(whole) - 5):
        try:
            decode_message(Message(0, whole[:cut] + tail))
        except WireError:
            continue
