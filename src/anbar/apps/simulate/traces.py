"""Traces as loads: a file's requests with names for their blocks."""

from collections.abc import Sequence
from dataclasses import replace

from anbar.apps.simulate.ask import Ask
from anbar.apps.simulate.load import OpenLoad
from anbar.apps.simulate.setup import Unfit
from anbar.plan.workload import Workload


def trace_load(workload: Workload, block_size: int, *, speed: float = 1.0, shared: bool = True) -> OpenLoad:
    """The requests of a trace, `speed` times as fast, for engines with blocks of `block_size` tokens.

    Not `shared`: no prompt has anything in common with another. Requests that the trace gives one time are
    spread evenly up to the next. Raises Unfit when the trace's blocks are not made of whole ones.
    """
    if workload.has_blocks and workload.block_size % block_size:
        text = f"is {block_size}; the trace's blocks have {workload.block_size} tokens"
        raise Unfit(("fleet", "block_size"), f"{text}: allowed are their divisors")
    parts = max(1, workload.block_size // block_size)
    names: dict[int, int] = {}
    start_s = workload.requests[0].at_s
    asks = []
    for number, asked in enumerate(workload.requests):
        blocks: Sequence[int] = asked.blocks[: asked.num_prompt // workload.block_size] if shared else ()
        named = [names.setdefault(block, len(names) + 1) for block in blocks]
        made = tuple(name * parts + part for name in named for part in range(parts))
        at_s = (asked.at_s - start_s) / speed
        asks.append(Ask(number, at_s, asked.num_prompt, max(1, asked.num_answer), made))
    return OpenLoad(spread(asks))


def spread(asks: Sequence[Ask]) -> list[Ask]:
    """Where times are rounded, as in Mooncake's traces to 3 s: requests of one time are spread evenly up to
    the next."""
    times = sorted({ask.at_s for ask in asks})
    after = dict(
        zip(times, [*times[1:], times[-1] + (times[-1] - times[0]) / max(1, len(times) - 1)], strict=True)
    )
    of: dict[float, list[Ask]] = {}
    for ask in asks:
        of.setdefault(ask.at_s, []).append(ask)
    found = []
    for at_s, group in of.items():
        gap_s = (after[at_s] - at_s) / len(group)
        for place, ask in enumerate(group):
            found.append(replace(ask, at_s=at_s + place * gap_s))
    return found
