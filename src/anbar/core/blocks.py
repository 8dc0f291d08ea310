"""The block hash chain: Anbar's own name for a run of tokens.

The router hashes token ids itself, from requests and from engines' device events, so it depends neither on
an engine's hash function nor on its seed. Equal chains mean equal KV: model, LoRA, salt and multimodal keys
are part of the chain.
"""

import sys
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import cast

import msgspec
import xxhash

from anbar.core.events import ExtraKeys
from anbar.core.ids import ChainHash
from anbar.core.request import RouteQuery

_encode_extra = msgspec.msgpack.Encoder().encode
_digest = xxhash.xxh3_64_intdigest

NO_EXTRA: ExtraKeys = ()


@lru_cache(1024)
def root(model: str, lora: str | None = None) -> ChainHash:
    """The hash that the first block of `model` chains to, with the adapter `lora` or none."""
    name = _encode_extra(["anbar-chain-1", model, lora or ""])
    return ChainHash(_digest(name))


def extend(parent: ChainHash, token_bytes: bytes, extra: ExtraKeys = NO_EXTRA) -> ChainHash:
    """The hash of one block: its token ids (uint32, little-endian) and its extra keys, seeded with its
    parent's hash, so that it stands for the block and all before it."""
    return ChainHash(_digest(token_bytes + _encode_extra(extra) if extra else token_bytes, parent))


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as the chain hashes them: uint32, little-endian."""
    packed = array("I", tokens)  # three times as fast as numpy from a tuple; four bytes wherever Python runs
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def extend_packed(parent: ChainHash, data: bytes, width: int) -> list[ChainHash]:
    """Hashes of the full blocks, of `width` bytes each, of packed tokens without extra keys, chained to
    `parent`."""
    hashes: list[int] = []
    block: int = parent
    for start in range(0, len(data) - width + 1, width):
        block = _digest(data[start : start + width], block)
        hashes.append(block)
    return cast("list[ChainHash]", hashes)


def extend_many(
    parent: ChainHash,
    tokens: Sequence[int],
    block_size: int,
    extra_of: Callable[[int], ExtraKeys] | None = None,
) -> list[ChainHash]:
    """Hashes of the full blocks of `tokens`, chained to `parent`; a partial last block has none.

    `extra_of(i)` gives the extra keys of the i-th of these blocks; None: there are none.
    """
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}, must be at least 1")
    data, width = pack_tokens(tokens), 4 * block_size
    if extra_of is None:
        return extend_packed(parent, data, width)
    hashes: list[ChainHash] = []
    for index in range(len(tokens) // block_size):
        parent = extend(parent, data[index * width : (index + 1) * width], extra_of(index))
        hashes.append(parent)
    return hashes


def first_extra(salt: str | None) -> Callable[[int], ExtraKeys] | None:
    """Extra keys of a text request's blocks: the salt on the first block only, whose hash all others chain
    to; None if there is no salt.

    Source: vLLM 0.32 `v1/core/kv_cache_utils.py`, `generate_block_hash_extra_keys`.
    """
    if not salt:
        return None
    first: ExtraKeys = (salt,)
    return lambda index: first if index == 0 else NO_EXTRA


def event_extra(keys: Sequence[ExtraKeys | None], lora: str | None) -> Callable[[int], ExtraKeys] | None:
    """Extra keys of an event's blocks without the adapter's name, which vLLM puts first on each block; None
    if no block has any.

    The adapter is part of `root` here, so that an adapter called like a salt is not mistaken for it.
    """
    if not any(keys):
        return None

    def of(index: int) -> ExtraKeys:
        extra = keys[index] or NO_EXTRA
        return extra[1:] if lora and extra[:1] == (lora,) else extra

    return of


def prompt_chain(
    model: str,
    query: RouteQuery,
    block_size: int,
    extend_run: Callable[[ChainHash, bytes, int], list[ChainHash]] = extend_packed,
) -> list[ChainHash]:
    """The hashes of the full blocks of a request's prompt, on an engine whose weights are `model`.
    `extend_run`: `extend_packed`, or what gives the same in another way.

    Only the first block has an extra key, the salt, and all others chain to it. Source: vLLM 0.32
    `v1/core/kv_cache_utils.py`, `generate_block_hash_extra_keys`.
    """
    parent, data, width = root(model, query.lora), pack_tokens(query.token_ids), 4 * block_size
    if not query.cache_salt or len(data) < width:
        return extend_run(parent, data, width)
    first = extend(parent, data[:width], (query.cache_salt,))
    return [first, *extend_run(first, data[width:], width)]
