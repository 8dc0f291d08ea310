"""The block hash chain: equal exactly for equal KV, whichever way the blocks were told of."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.core.blocks import event_extra, extend, extend_many, first_extra, prompt_chain, root
from anbar.core.events import ExtraKeys
from anbar.core.ids import ChainHash, RequestId
from anbar.core.request import RouteQuery

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=12)
SIZES = st.integers(1, 4)


def chain(
    tokens: Sequence[int], size: int, *, salt: str | None = None, lora: str | None = None
) -> list[ChainHash]:
    query = RouteQuery(RequestId("r"), "m", tuple(tokens), len(tokens), lora=lora, cache_salt=salt)
    return prompt_chain("m", query, size)


@given(TOKENS, SIZES)
def test_many_blocks_are_one_after_the_other(tokens: list[int], size: int) -> None:
    """Hashing a run at once gives what hashing block by block gives; a partial block has no hash."""
    parent, expected = root("m"), []
    for start in range(0, len(tokens) - size + 1, size):
        data = b"".join(token.to_bytes(4, "little") for token in tokens[start : start + size])
        parent = extend(parent, data)
        expected.append(parent)
    assert extend_many(root("m"), tokens, size) == expected
    assert len(expected) == len(tokens) // size


@given(TOKENS, SIZES, st.integers(0, 11))
def test_a_chain_continues_anywhere(tokens: list[int], size: int, cut: int) -> None:
    """An event that begins in the middle, at its parent, extends the same chain."""
    whole = extend_many(root("m"), tokens, size)
    blocks = min(cut, len(whole))
    parent = whole[blocks - 1] if blocks else root("m")
    assert whole[:blocks] + extend_many(parent, tokens[blocks * size :], size) == whole


@given(TOKENS, TOKENS, SIZES)
def test_equal_chains_are_equal_prefixes(left: list[int], right: list[int], size: int) -> None:
    """Two prompts share exactly the hashes of the blocks that they share from the start."""
    shared = 0
    while (shared + 1) * size <= min(len(left), len(right)):
        if left[: (shared + 1) * size] != right[: (shared + 1) * size]:
            break
        shared += 1
    one, other = chain(left, size), chain(right, size)
    assert one[:shared] == other[:shared]
    assert not set(one[shared:]) & set(other[shared:])


def test_model_adapter_and_salt_change_every_block() -> None:
    """No block of one identity is a block of another, the first as little as the last."""
    tokens = [1] * 6
    chains = [
        chain(tokens, 2),
        chain(tokens, 2, salt="a"),
        chain(tokens, 2, salt="b"),
        chain(tokens, 2, lora="a"),
        chain(tokens, 2, lora="a", salt="a"),
        extend_many(root("n"), tokens, 2),
    ]
    hashes = [block for entry in chains for block in entry]
    assert len(set(hashes)) == len(hashes)


@given(st.none() | st.sampled_from(["ad", "s"]), st.none() | st.sampled_from(["ad", "s"]))
def test_events_and_requests_agree(lora: str | None, salt: str | None) -> None:
    """The engine writes the adapter's name on each block and the salt on the first; the request's chain comes
    out the same, also when both are called alike."""
    tokens = [5, 6, 7, 8]
    name = (lora,) if lora else ()
    published: list[ExtraKeys | None] = [(*name, *((salt,) if salt else ())) or None, name or None]
    event = extend_many(root("m", lora), tokens, 2, event_extra(published, lora))
    assert event == chain(tokens, 2, salt=salt, lora=lora)
    assert event_extra([None, ()], "ad") is None


def test_extra_keys_of_media_count() -> None:
    """An image at another offset, or another image, is other content, as list or as tuple alike."""
    of = [event_extra([keys], None) for keys in ((["img", 3],), (("img", 3),), (["img", 4],), (["pic", 3],))]
    found = [extend_many(root("m"), [1, 2], 2, extra)[0] for extra in of]
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_block_size_is_checked() -> None:
    """A block has at least one token."""
    with pytest.raises(ValueError, match="block_size is 0"):
        extend_many(root("m"), [1], 0)


def test_the_chain_is_stable_over_releases() -> None:
    """These values are in recorded block logs: changing them makes old logs useless."""
    assert root("m") == 2099103562870664963
    assert chain([1, 2, 3], 1, salt="s") == [1143015424195890485, 4591309926819047679, 16782062875868956550]


def test_first_extra_is_on_the_first_block_only() -> None:
    """Without a salt no block has any."""
    extra_of = first_extra("s")
    assert extra_of is not None
    assert [extra_of(at) for at in range(3)] == [("s",), (), ()]
    assert first_extra(None) is None
