"""vLLM's rule for what it reuses of a prompt, case by case: blocks of 2 tokens, chunks of 1 or 2 blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.core.fleet import PrefixMatch
from anbar.route.match import Needs, match_prefix, may_grow, runs_of

D, H, S = 1, 2, 4
"""A block on the device, in host memory, in the shared store."""
ONE = Needs(device=D, host=H, any_tier=(H | S,))
TWO_GROUPS = Needs(device=D | 8, host=H | 16, any_tier=(H | S, 16 | 32))


@pytest.mark.parametrize(
    ("masks", "num_tokens", "chunk_blocks", "expected"),
    [
        pytest.param([D, D, D], 7, 0, (6, 6, 6), id="device alone"),
        pytest.param([D, 0, D], 7, 0, (2, 2, 2), id="a hole ends the run"),
        pytest.param([D, D, D], 6, 0, (4, 4, 4), id="the last token is computed, so its block is"),
        pytest.param([], 1, 0, (0, 0, 0), id="shorter than a block"),
        pytest.param([], 0, 1, (0, 0, 0), id="no tokens known"),
        pytest.param([H, H, H], 6, 1, (0, 6, 6), id="a load may cover the whole prompt"),
        pytest.param(
            [D | H, D | H, D | H], 6, 1, (4, 6, 6), id="its last block is loaded over the device's cap"
        ),
        pytest.param([D, H, S, H], 9, 1, (2, 4, 8), id="tiers take turns, host alone stops at its hole"),
        pytest.param([S, 0, S], 7, 1, (0, 0, 2), id="a chunk that is missing ends the load"),
        pytest.param([0, S, 0, S], 8, 2, (0, 0, 8), id="a chunk is known by its last block"),
        pytest.param([S, 0, S, 0], 8, 2, (0, 0, 0), id="not by its first"),
        pytest.param([D, S, 0, S], 8, 2, (2, 2, 8), id="a load begins inside a chunk"),
        pytest.param([D, S, 0, 0], 8, 2, (2, 2, 2), id="but less than a chunk is not loaded"),
        pytest.param([D, S, 0], 7, 2, (2, 2, 2), id="nor is a chunk that the prompt does not fill"),
        pytest.param([D, D, D, S, 0, S], 12, 2, (6, 6, 12), id="from inside the second chunk to the third"),
        pytest.param([D, D, 0, S], 9, 2, (4, 4, 8), id="the next chunk behind the device"),
    ],
)
def test_rule(masks: list[int], num_tokens: int, chunk_blocks: int, expected: tuple[int, int, int]) -> None:
    """Tokens reused from the device, from host memory on top, and from the shared store on top of both."""
    assert match_prefix(runs_of(masks), ONE, num_tokens, 2, chunk_blocks) == PrefixMatch(*expected)


def test_every_group_is_needed() -> None:
    """With two cache groups, a block is on the device or in the host tier only if both are; of a chunk
    one group may come from host memory and the other from the store."""
    assert match_prefix(runs_of([D, D]), TWO_GROUPS, 5, 2, 1) == PrefixMatch(0, 0, 0)
    assert match_prefix(runs_of([D | 8, D]), TWO_GROUPS, 5, 2, 1) == PrefixMatch(2, 2, 2)
    assert match_prefix(runs_of([H | 16, H | 32]), TWO_GROUPS, 5, 2, 1) == PrefixMatch(0, 2, 4)
    assert match_prefix(runs_of([H | S]), TWO_GROUPS, 5, 2, 1) == PrefixMatch(0, 0, 0)


LONG_MASKS = st.lists(st.sampled_from([0, D, D | H, H, S, D | H | S]), min_size=1, max_size=24)


@given(LONG_MASKS, st.integers(0, 3), st.integers(0, 48))
def test_what_may_not_grow_does_not(masks: list[int], chunk_blocks: int, num_known: int) -> None:
    """Where the beginning of a prompt is said to tell all, the whole prompt's match is that of the beginning;
    where not, there is more to know."""
    num_tokens = 2 * len(masks)
    num_known = min(num_known, num_tokens)
    known = match_prefix(runs_of(masks[: num_known // 2]), ONE, num_known, 2, chunk_blocks)
    whole = match_prefix(runs_of(masks), ONE, num_tokens, 2, chunk_blocks)
    if not may_grow(known, num_known, 2 * max(1, chunk_blocks)):
        assert known == whole


def test_what_may_grow() -> None:
    """Blocks of 2 tokens: all that is seen is there, or the next block or chunk was not seen whole."""
    assert may_grow(PrefixMatch(), 2, 2)
    assert not may_grow(PrefixMatch(), 3, 2)
    assert may_grow(PrefixMatch(4, 4, 4), 6, 2)
    assert not may_grow(PrefixMatch(4, 4, 4), 7, 2)
    assert may_grow(PrefixMatch(2, 2, 2), 8, 4)
    assert not may_grow(PrefixMatch(2, 2, 2), 9, 4)


MASKS = st.lists(st.integers(0, 7), max_size=8)


@given(MASKS, st.integers(0, 3), st.integers(0, 1))
def test_bounds(masks: list[int], chunk_blocks: int, rest: int) -> None:
    """Tiers add up, nothing exceeds the prompt, the device leaves a token, loads come in at least a chunk."""
    num_tokens = 2 * len(masks) + rest
    match = match_prefix(runs_of(masks), ONE, num_tokens, 2, chunk_blocks)
    assert 0 <= match.device <= match.host <= match.shared <= num_tokens
    assert match.device <= max(0, num_tokens - 1)
    assert match.device % 2 == match.host % 2 == match.shared % 2 == 0
    for reached in (match.host, match.shared):
        assert reached == match.device or reached - match.device >= 2 * chunk_blocks
        assert reached == match.device or reached % (2 * chunk_blocks) == 0


@given(MASKS, st.integers(1, 3), st.integers(0, 7), st.sampled_from([H, S]))
def test_more_in_the_tiers_is_never_less(masks: list[int], chunk_blocks: int, at: int, tier: int) -> None:
    """One more block in host memory or in the store never lowers what is reused."""
    richer = [mask | tier if index == at else mask for index, mask in enumerate(masks)]
    before = match_prefix(runs_of(masks), ONE, 2 * len(masks), 2, chunk_blocks)
    after = match_prefix(runs_of(richer), ONE, 2 * len(masks), 2, chunk_blocks)
    assert after.device == before.device
    assert after.host >= before.host
    assert after.shared >= before.shared
