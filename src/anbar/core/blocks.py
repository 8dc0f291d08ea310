"""The block hash chain: Anbar's own name for a run of tokens.

The router hashes token ids itself, from requests and from engines' device events, so it depends neither on
an engine's hash function nor on its seed. Equal chains mean equal KV: model, LoRA, salt and multimodal keys
are part of the chain.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import xxhash

from anbar.core.events import ExtraKeys
from anbar.core.ids import ChainHash

_encode_extra = msgspec.msgpack.Encoder().encode

NO_EXTRA: ExtraKeys = ()


def root(model: str) -> ChainHash:
    """The hash that the first block of `model` chains to."""
    return ChainHash(xxhash.xxh3_64_intdigest(b"anbar-chain-1\x00" + model.encode()))


def extend(parent: ChainHash, token_bytes: bytes, extra: ExtraKeys = NO_EXTRA) -> ChainHash:
    """The hash of one block: its parent's hash, its token ids (uint32, little-endian) and its extra keys."""
    data = parent.to_bytes(8, "little") + token_bytes
    if extra:
        data += _encode_extra(extra)
    return ChainHash(xxhash.xxh3_64_intdigest(data))


def extend_many(
    parent: ChainHash,
    tokens: Sequence[int],
    block_size: int,
    extra_of: Callable[[int], ExtraKeys] | None = None,
) -> list[ChainHash]:
    """Hashes of the full blocks of `tokens`, chained to `parent`; a partial last block has none.

    `extra_of(i)` gives the extra keys of the i-th of these blocks.
    """
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}, must be at least 1")
    data = np.asarray(tokens, dtype="<u4").tobytes()
    width = 4 * block_size
    hashes: list[ChainHash] = []
    for index in range(len(tokens) // block_size):
        extra = extra_of(index) if extra_of is not None else NO_EXTRA
        parent = extend(parent, data[index * width : (index + 1) * width], extra)
        hashes.append(parent)
    return hashes


def request_extra(lora: str | None, salt: str | None) -> Callable[[int], ExtraKeys]:
    """Extra keys of a text request's blocks, in the engine's order: LoRA on each, salt on the first.

    Source: vLLM 0.32 `v1/core/kv_cache_utils.py`, `generate_block_hash_extra_keys`, in the untagged form of
    `to_event_extra_keys`.
    """
    every: ExtraKeys = (lora,) if lora else ()
    first: ExtraKeys = (*every, salt) if salt else every
    return lambda index: first if index == 0 else every
