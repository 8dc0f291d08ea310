"""The wire of vLLM's KV events, decoded. Pure: bytes in, frozen values out.

What is on the wire (vLLM 0.32 `distributed/kv_events.py`, and what came before it):

- A live message is `[topic, seq, payload]`, a replayed one `["", topic, seq, payload]` or, in older releases,
  `["", seq, payload]`. `seq` is 8 bytes, big-endian; -1 ends a replay.
- The payload is msgpack: the array `[ts, events, data_parallel_rank]`, whose tail may be missing; in builds
  of June 2026 a map of these.
- An event is a map with the key `type` (0.32), defaults left out; or an array whose first element is the type
  and whose others are the fields in the order of declaration (older). Unknown keys and further elements are
  ignored, so that a new field does not stop the stream.
- A block hash is an integer (the low 64 bits, what 0.32 does by default) or the whole digest as bytes.

A type or a medium that is not known becomes `Unknown`, never a device block. What does not have the shape
above raises `WireError`, which names what is wrong and nothing else is ever raised.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from anbar.core.errors import WireError
from anbar.core.events import (
    AllCleared,
    BlocksRemoved,
    BlocksStored,
    ExtraKeys,
    KvBatch,
    KvEvent,
    Tier,
    Unknown,
)
from anbar.core.ids import EngineHash

SEQ_BYTES = 8
END_SEQ = -1

_MEDIA: Mapping[str | None, Tier] = {
    None: Tier.DEVICE,
    "GPU": Tier.DEVICE,
    "CPU": Tier.HOST,
    "STORAGE": Tier.SHARED,
    "FS": Tier.SHARED,
    "OBJ": Tier.SHARED,
}
"""Media by name; FS and OBJ were told apart until 0.26."""

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
        "locality",
        "ownership",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx", "locality", "ownership"),
    "AllBlocksCleared": (),
}
"""The fields of each event in the order in which the array form has them."""

_HASH_MASK = (1 << 64) - 1
_decode = msgspec.msgpack.Decoder().decode


@dataclass(frozen=True, slots=True)
class Message:
    """One message, its payload not yet decoded: `seq` is `END_SEQ` at the end of a replay."""

    seq: int
    payload: bytes


def live_message(frames: Sequence[bytes]) -> Message:
    """Read `[topic, seq, payload]`; raises WireError."""
    if len(frames) != 3:
        raise WireError(f"a live message has {len(frames)} frames instead of 3")
    return Message(_seq(frames[1]), frames[2])


def replay_message(frames: Sequence[bytes]) -> Message:
    """Read an answer to a replay request, with or without the topic frame; raises WireError."""
    if len(frames) not in (3, 4):
        raise WireError(f"a replayed message has {len(frames)} frames instead of 3 or 4")
    if frames[0]:
        raise WireError("a replayed message does not begin with an empty frame")
    return Message(_seq(frames[-2]), frames[-1])


def replay_request(first_seq: int) -> list[bytes]:
    """The frames that ask for every buffered batch from `first_seq` on."""
    return [b"", first_seq.to_bytes(SEQ_BYTES, "big")]


def decode_message(message: Message) -> KvBatch:
    """Decode the payload of a message; raises WireError."""
    try:
        payload = _decode(message.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"the payload is not msgpack: {error}") from error
    timestamp_s, events, rank = _batch(payload)
    if isinstance(timestamp_s, bool) or not isinstance(timestamp_s, int | float):
        raise WireError("the batch's time is not a number")
    if not isinstance(events, list):
        raise WireError("the batch's events are not an array")
    return KvBatch(
        message.seq,
        tuple(_event(event) for event in events),
        float(timestamp_s),
        _int(rank, "data_parallel_rank") if rank is not None else 0,
    )


def _batch(payload: object) -> tuple[object, object, object]:
    """A batch's time, events and rank; None for what is not said."""
    if isinstance(payload, dict):
        return payload.get("ts"), payload.get("events"), payload.get("data_parallel_rank")
    if not isinstance(payload, list) or len(payload) < 2:
        raise WireError("the payload is not an array of a time and events")
    return payload[0], payload[1], payload[2] if len(payload) > 2 else None


def _seq(frame: bytes) -> int:
    if len(frame) != SEQ_BYTES:
        raise WireError(f"the sequence number has {len(frame)} bytes instead of {SEQ_BYTES}")
    return int.from_bytes(frame, "big", signed=True)


def _event(raw: object) -> KvEvent:
    kind, fields = _fields(raw)
    match kind:
        case "BlockStored":
            return _stored(fields)
        case "BlockRemoved":
            return _removed(fields)
        case "AllBlocksCleared":
            return AllCleared()
    return Unknown(f"event {kind[:64]}")


def _fields(raw: object) -> tuple[str, Mapping[str, object]]:
    """An event's type, and its fields by name."""
    if isinstance(raw, dict):
        kind = raw.get("type")
        if not isinstance(kind, str):
            raise WireError("an event has no type")
        return kind, cast("Mapping[str, object]", raw)
    if isinstance(raw, list) and raw and isinstance(raw[0], str):
        return raw[0], dict(zip(_FIELDS.get(raw[0], ()), raw[1:], strict=False))
    raise WireError("an event is neither a map nor an array that begins with its type")


def _stored(fields: Mapping[str, object]) -> KvEvent:
    tier = _tier(fields)
    if tier is None:
        return Unknown(f"medium {str(fields.get('medium'))[:64]}")
    parent = fields.get("parent_block_hash")
    return BlocksStored(
        hashes=_hashes(fields),
        parent=_hash(parent, "parent_block_hash") if parent is not None else None,
        token_ids=_token_ids(fields),
        block_size=_int(fields.get("block_size", 0), "block_size"),
        tier=tier,
        group=_group(fields),
        lora=_text(fields, "lora_name"),
        extra_keys=_extra_keys(fields),
        owner=_text(fields, "ownership") or "",
    )


def _removed(fields: Mapping[str, object]) -> KvEvent:
    tier = _tier(fields)
    if tier is None:
        return Unknown(f"medium {str(fields.get('medium'))[:64]}")
    return BlocksRemoved(_hashes(fields), tier, _group(fields), _text(fields, "ownership") or "")


def _tier(fields: Mapping[str, object]) -> Tier | None:
    """None for a medium that this version does not know."""
    return _MEDIA.get(_text(fields, "medium"))


def _hashes(fields: Mapping[str, object]) -> tuple[EngineHash, ...]:
    raw = fields.get("block_hashes")
    if not isinstance(raw, list):
        raise WireError("block_hashes is not an array")
    return tuple(_hash(entry, "block_hashes") for entry in raw)


def _hash(raw: object, field: str) -> EngineHash:
    if isinstance(raw, bytes) and raw:
        return EngineHash(raw)
    if isinstance(raw, int) and not isinstance(raw, bool):
        return EngineHash((raw & _HASH_MASK).to_bytes(8, "big"))
    raise WireError(f"{field} holds something that is neither an integer nor bytes")


def _token_ids(fields: Mapping[str, object]) -> tuple[int, ...]:
    raw = fields.get("token_ids", [])
    if not isinstance(raw, list):
        raise WireError("token_ids is not an array")
    # In C as far as can be: there are a hundred thousand of them in a long prompt's event.
    if raw and (set(map(type, raw)) != {int} or min(raw) < 0 or max(raw) >> 32):
        raise WireError("token_ids holds something that is not a token id")
    return tuple(raw)


def _extra_keys(fields: Mapping[str, object]) -> tuple[ExtraKeys, ...] | None:
    raw = fields.get("extra_keys")
    if raw is None:
        return None
    if not isinstance(raw, list):
        raise WireError("extra_keys is not an array")
    return tuple(_block_extra(entry) for entry in raw)


def _block_extra(raw: object) -> ExtraKeys:
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise WireError("extra_keys holds something that is neither an array nor nothing")
    return tuple(raw)


def _group(fields: Mapping[str, object]) -> int:
    raw = fields.get("group_idx")
    return _int(raw, "group_idx") if raw is not None else 0


def _int(raw: object, field: str) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int) or raw < 0:
        raise WireError(f"{field} is not a number from 0 up")
    return raw


def _text(fields: Mapping[str, object], field: str) -> str | None:
    raw = fields.get(field)
    if raw is not None and not isinstance(raw, str):
        raise WireError(f"{field} is not text")
    return raw
