"""The lines of a block log: Mooncake's fields, whole prompts as chains, and lines that are not whole."""

from hypothesis import given
from hypothesis import strategies as st

from anbar.core.block_log import BlockLogReader, trace_chain
from anbar.core.blocks import prompt_chain
from anbar.core.ids import RequestId
from anbar.core.request import RouteQuery

TOKENS = st.lists(st.integers(0, 3), max_size=40)


def query(tokens: list[int], salt: str | None = None) -> RouteQuery:
    return RouteQuery(RequestId("r"), "m", tuple(tokens), len(tokens), cache_salt=salt)


def test_a_line_of_mooncake_is_an_entry() -> None:
    """Their fields alone are enough: 512 tokens a block, nothing known of the rest."""
    line = b'{"timestamp": 27, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}\n'
    (entry,) = BlockLogReader().entries([line])
    assert (entry.timestamp, entry.input_length, entry.output_length) == (27, 6758, 500)
    assert (entry.hash_ids, entry.block_size, entry.session, entry.cached) == ([0, 1, 2], 512, "", None)


def test_lines_that_are_not_whole_are_skipped_and_counted() -> None:
    """A torn last line, one that two writes ran together, an empty one, another program's."""
    good = b'{"timestamp":1,"input_length":2}\n'
    reader = BlockLogReader()
    lines = [good, b"\n", b'{"timestamp":1,"inp\n', good[:-1] + good, b'{"other": 1}\n', good, b'{"times']
    assert len(list(reader.entries(lines))) == 2
    assert reader.num_skipped == 4


@given(TOKENS, TOKENS, st.integers(1, 7), st.sampled_from([None, "s"]))
def test_ids_are_common_exactly_where_blocks_are(
    one: list[int], other: list[int], size: int, salt: str | None
) -> None:
    """Two prompts have as many ids in common from the start as blocks; a block that is not full counts as its
    own content, and full blocks are named as in the index."""
    chains = [trace_chain("m", query(tokens, salt), size) for tokens in (one, other)]
    blocks = [[tuple(tokens[i : i + size]) for i in range(0, len(tokens), size)] for tokens in (one, other)]
    assert [len(chain) for chain in chains] == [len(each) for each in blocks]
    assert _common(*chains) == _common(*blocks)
    assert trace_chain("m", query(one, salt), size)[: len(one) // size] == prompt_chain(
        "m", query(one, salt), size
    )


def test_ids_of_other_scopes_models_and_adapters_differ() -> None:
    """Equal tokens, no id in common."""
    plain = trace_chain("m", query([1, 2, 3]), 2)
    lora = RouteQuery(RequestId("r"), "m", (1, 2, 3), 3, lora="a")
    for other in (
        trace_chain("m", query([1, 2, 3], "salt"), 2),
        trace_chain("n", query([1, 2, 3]), 2),
        trace_chain("m", lora, 2),
    ):
        assert set(plain).isdisjoint(other)


def _common(one: list[object], other: list[object]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
