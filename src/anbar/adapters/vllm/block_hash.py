"""vLLM's own block hashes, computed without vLLM: what an engine publishes, and what makes KV differ.

Source: vLLM 0.32 `v1/core/kv_cache_utils.py` (`hash_block_tokens`, `generate_block_hash_extra_keys`) with its
default hash, sha256 over the pickled (parent's hash, tokens, extra keys), and the fixed seed that it takes
when PYTHONHASHSEED is not set.
"""

import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass

DEFAULT_SEED = "vllm-none-hash"

_dumps = pickle.dumps
_PROTOCOL = pickle.HIGHEST_PROTOCOL
_sha256 = hashlib.sha256


def root_hash(seed: str = DEFAULT_SEED) -> bytes:
    """What a prompt's first block has for a parent."""
    return _sha256(_dumps(seed, protocol=_PROTOCOL)).digest()


ROOT = root_hash()


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes equal tokens different KV: an adapter on every block, a salt on the first."""

    lora: str | None = None
    salt: str | None = None

    def tagged(self, index: int) -> tuple[tuple[str, ...], ...] | None:
        """The extra keys that go into the hash of block `index`."""
        keys: list[tuple[str, ...]] = []
        if self.lora:
            keys.append(("lora", self.lora, self.lora))
        if self.salt and index == 0:
            keys.append(("cache_salt", self.salt))
        return tuple(keys) or None

    def published(self, index: int) -> tuple[str, ...] | None:
        """The same keys as an event shows them."""
        tagged = self.tagged(index)
        return None if tagged is None else tuple(key[1] for key in tagged)


PLAIN = Identity()


def extend(
    known: list[bytes],
    tokens: Sequence[int],
    block_size: int,
    num_blocks: int,
    identity: Identity = PLAIN,
    root: bytes = ROOT,
) -> None:
    """Append the hashes of further full blocks of `tokens` to those of its first ones, up to `num_blocks`."""
    parent = known[-1] if known else root
    for index in range(len(known), num_blocks):
        block = tuple(tokens[index * block_size : (index + 1) * block_size])
        data = _dumps((parent, block, identity.tagged(index)), protocol=_PROTOCOL)
        parent = _sha256(data).digest()
        known.append(parent)


def block_hashes(tokens: Sequence[int], block_size: int, identity: Identity = PLAIN) -> list[bytes]:
    """The hashes of all full blocks of `tokens`."""
    hashes: list[bytes] = []
    extend(hashes, tokens, block_size, len(tokens) // block_size, identity)
    return hashes
