"""Parametric loads: what prompts have in common, who waits for whom, and that a seed decides all of it."""

import math

from anbar.apps.simulate.ask import Ask, AskKeys
from anbar.apps.simulate.scenario import DocumentsConfig, Pick, StreamConfig
from anbar.apps.simulate.streams import Chain, Names, StreamLoad

BLOCK = 10


def load(*streams: StreamConfig, duration_s: float = 100.0, seed: int = 1) -> StreamLoad:
    """Of these streams."""
    return StreamLoad(streams, duration_s, BLOCK, seed)


def common(left: Ask, right: Ask) -> int:
    """Tokens at the beginning that two prompts share, in whole blocks."""
    count = 0
    for a, b in zip(left.blocks, right.blocks, strict=False):
        if a != b:
            break
        count += BLOCK
    return count


def test_prompts_share_what_they_are_said_to_share() -> None:
    """35 tokens for all, then 40 of one of two tenants, then a question of one's own."""
    stream = StreamConfig(
        rate=1.0, shared_tokens=35, prefixes=2, prefix_tokens=40, pick=Pick.CYCLE, question_tokens=50
    )
    first, second, third, *_ = load(stream).asks
    assert first.num_prompt == 125
    assert len(first.blocks) == 12
    assert common(first, second) == 30
    assert common(first, third) == 70


def test_adapters_share_nothing() -> None:
    """Equal tokens, one adapter or the other."""
    asks = load(StreamConfig(rate=1.0, shared_tokens=100, adapters=2, question_tokens=10)).asks
    assert {common(asks[0], ask) for ask in asks[1:]} == {0, 100}


def test_documents_are_shared_only_behind_the_same_ones() -> None:
    """Three documents in a cycle, three in each prompt: 0 1 2, 0 1 2; and two in each: 0 1, 2 0."""
    made = DocumentsConfig(count=3, each=3, tokens=20, pick=Pick.CYCLE)
    first, second, *_ = load(StreamConfig(rate=1.0, documents=made, question_tokens=10)).asks
    assert common(first, second) == 60
    made = DocumentsConfig(count=3, each=2, tokens=20, pick=Pick.CYCLE)
    first, second, *_ = load(StreamConfig(rate=1.0, documents=made, question_tokens=10)).asks
    assert common(first, second) == 0


def test_a_turn_begins_with_the_turns_before_it_and_their_answers() -> None:
    """Two turns: the second prompt holds the first one and its answer, and comes after a pause."""
    made = load(
        StreamConfig(rate=1.0, sessions=1, turns=2, question_tokens=25, answer_tokens=30, think_s=7.0)
    )
    (first,) = made.asks
    second = made.after(first, 50.0)
    assert second is not None
    assert (second.at_s, second.num_prompt) == (57.0, 25 + 30 + 25)
    assert tuple(AskKeys(first).first(5)) == second.blocks[:5]
    assert made.after(second, 60.0) is None
    assert made.soonest_s == 7.0
    assert made.longest == 110


def test_clients_go_on_until_the_time_is_over() -> None:
    """Each answer is followed by the client's next session at once; nothing begins after the duration."""
    made = load(StreamConfig(clients=2), duration_s=10.0)
    assert len(made.asks) == 2
    following = made.after(made.asks[0], 9.0)
    assert following is not None
    assert following.at_s == 9.0
    assert made.after(following, 10.0) is None
    assert made.soonest_s == 0.0


def test_a_rate_begins_so_many_sessions_and_no_more_than_told() -> None:
    """Some 200 in 100 s at 2 a second; five where five are told."""
    assert 150 < len(load(StreamConfig(rate=2.0)).asks) < 250
    made = load(StreamConfig(rate=2.0, sessions=5))
    assert len(made.asks) == 5
    assert made.soonest_s == math.inf


def test_a_seed_decides_everything() -> None:
    """Equal for one, different for another."""
    stream = StreamConfig(rate=1.0, prefixes=5, prefix_tokens=(10, 90), question_tokens=(10, 90))
    assert load(stream).asks == load(stream).asks
    assert load(stream).asks != load(stream, seed=2).asks


def test_blocks_across_a_boundary_are_of_both_sides() -> None:
    """15 tokens of one thing and 5 of another: the second block is another one with another end."""
    names = Names()
    found = []
    for end in ("x", "y", "x"):
        chain = Chain(names, BLOCK, "base")
        chain.add("same", 15)
        chain.add(end, 5)
        found.append(chain.blocks)
    assert found[0] == found[2]
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]
