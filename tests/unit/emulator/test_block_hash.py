"""Block hashes: a chain, extended as tokens come, that tells apart what makes KV differ."""

import hashlib
import pickle

from hypothesis import given
from hypothesis import strategies as st

from anbar.adapters.vllm.block_hash import PLAIN, Identity, block_hashes, extend, root_hash

TOKENS = st.lists(st.integers(0, 3), max_size=24)


def test_a_hash_is_the_digest_of_parent_tokens_and_extra_keys() -> None:
    """Two blocks with a salt, computed by hand: the salt belongs to the first alone."""
    first = hashlib.sha256(
        pickle.dumps((root_hash(), (1, 2), (("cache_salt", "s"),)), protocol=pickle.HIGHEST_PROTOCOL)
    ).digest()
    second = hashlib.sha256(pickle.dumps((first, (3, 4), None), protocol=pickle.HIGHEST_PROTOCOL)).digest()
    assert block_hashes([1, 2, 3, 4, 5], 2, Identity(salt="s")) == [first, second]


def test_an_adapter_is_on_every_block() -> None:
    """Published keys are the values alone: the adapter's name first, then the salt."""
    identity = Identity(lora="tuned", salt="s")
    assert identity.published(0) == ("tuned", "s")
    assert identity.published(1) == ("tuned",)
    assert identity.tagged(1) == (("lora", "tuned", "tuned"),)
    assert PLAIN.published(0) is None


@given(TOKENS, TOKENS, st.sampled_from([PLAIN, Identity("a"), Identity(None, "b"), Identity("a", "b")]))
def test_extending_gives_what_hashing_at_once_gives(
    before: list[int], after: list[int], identity: Identity
) -> None:
    """Hashes of some tokens, extended as more come, are the hashes of all of them."""
    hashes = block_hashes(before, 3, identity)
    tokens = before + after
    extend(hashes, tokens, 3, len(tokens) // 3, identity)
    assert hashes == block_hashes(tokens, 3, identity)


@given(TOKENS, TOKENS)
def test_equal_hashes_mean_equal_prefixes(one: list[int], other: list[int]) -> None:
    """Two prompts share exactly the hashes of the full blocks in which they agree from the start."""
    hashes = block_hashes(one, 2), block_hashes(other, 2)
    for index, pair in enumerate(zip(*hashes, strict=False)):
        end = 2 * (index + 1)
        assert (pair[0] == pair[1]) == (one[:end] == other[:end])


def test_identities_share_nothing() -> None:
    """The same tokens under another adapter, another salt or none have other hashes throughout."""
    identities = (PLAIN, Identity("a"), Identity("b"), Identity(None, "a"), Identity("a", "a"))
    seen = [block for identity in identities for block in block_hashes([1, 2, 3, 4], 2, identity)]
    assert len(set(seen)) == 2 * len(identities)
