"""The chains of prompts with what is remembered of earlier ones, against hashing each from its first
block."""

import random

import pytest

from anbar.core.blocks import prompt_chain
from anbar.core.ids import RequestId
from anbar.core.request import RouteQuery
from anbar.route.chains import SEGMENT_BLOCKS, PromptChains, Segments

SIZE = 2
SEGMENT = SEGMENT_BLOCKS * SIZE
"""Tokens."""


def prompt(tokens: list[int], salt: str | None = None, lora: str | None = None) -> RouteQuery:
    return RouteQuery(RequestId("r"), "m", tuple(tokens), len(tokens), lora=lora, cache_salt=salt)


@pytest.mark.parametrize("salt", [None, "s"])
def test_a_growing_conversation_has_the_chain_of_its_text(salt: str | None) -> None:
    """Turn after turn, around the borders of segments, with another conversation in between that shares its
    beginning, and one that has the same text behind another beginning: always the chain that hashing all of
    it gives."""
    rng = random.Random(7)
    text = [rng.randrange(50_000) for _ in range(4 * SEGMENT)]
    chains = PromptChains()
    for end in (1, SIZE, SEGMENT - 1, SEGMENT, SEGMENT + 1, SEGMENT + SIZE, 2 * SEGMENT + 5, 4 * SEGMENT):
        forked = [*text[: end // 2], *reversed(text[end // 2 : end])]
        for tokens in (text[:end], forked, [1, 2, *text[:end]]):
            for kinds in ({"salt": salt}, {"salt": salt, "lora": "ad"}):
                query = prompt(tokens, **kinds)
                for size in (SIZE, 2 * SIZE):
                    assert chains.of(query, "m", size) == prompt_chain("m", query, size)
                assert chains.of(query, "n", SIZE) == prompt_chain("n", query, SIZE)


def test_segments_are_bounded_and_the_last_used_stay() -> None:
    """Of many prompts the segments used last are remembered; the results are the same either way."""
    segments = Segments(max_segments=2)
    queries = [prompt([number] * SEGMENT) for number in range(3)]
    for number in (0, 1, 0, 2, 0, 1):
        found = prompt_chain("m", queries[number], SIZE, segments.extend)
        assert found == prompt_chain("m", queries[number], SIZE)
        assert len(segments) <= 2


def test_a_segment_that_is_known_is_not_hashed_again() -> None:
    """What is remembered is used: with other hashes in it, the chain has these."""
    segments = Segments()
    query = prompt([5] * (2 * SEGMENT))
    prompt_chain("m", query, SIZE, segments.extend)
    (first, _) = segments._known.values()
    first[0] = 99
    assert prompt_chain("m", query, SIZE, segments.extend)[0] == 99
