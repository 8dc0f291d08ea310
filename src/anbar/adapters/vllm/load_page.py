"""What an engine's `/metrics` says of its load. The page has some thousand lines; a handful are looked
for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReportedLoad:
    """One reading; sums over the engine's data-parallel ranks. The gauges move once a step, so they are
    as old as the last one."""

    num_running: int
    """Sequences in execution, those whose prompt is being computed included."""
    num_waiting: int
    """Sequences in its queue."""
    mean_prompt: float = 0.0
    """Tokens of a prompt, over all that it has finished."""
    cached_share: float = 0.0
    """Of prompt tokens, those that were in its device's cache."""

    @property
    def total(self) -> int:
        return self.num_running + self.num_waiting


def parse_load(page: bytes) -> ReportedLoad | None:
    """The load in a page, None where it does not tell."""
    running, waiting = _sum(page, b"num_requests_running"), _sum(page, b"num_requests_waiting")
    if running is None or waiting is None:
        return None
    tokens, prompts = _sum(page, b"request_prompt_tokens_sum"), _sum(page, b"request_prompt_tokens_count")
    hits, looked_up = _sum(page, b"prefix_cache_hits_total"), _sum(page, b"prefix_cache_queries_total")
    return ReportedLoad(
        int(running), int(waiting), _ratio(tokens, prompts), min(1.0, _ratio(hits, looked_up))
    )


def _ratio(above: float | None, below: float | None) -> float:
    return above / below if above and below else 0.0


def _sum(page: bytes, name: bytes) -> float | None:
    """The sum of a family's samples, None when there is none."""
    found: float | None = None
    for mark in (b"\nvllm:%b{" % name, b"\nvllm:%b " % name):
        start = page.find(mark)
        while start >= 0:
            end = page.find(b"\n", start + 1)
            line = page[start + 1 : end if end >= 0 else len(page)]
            value = _number(line.rpartition(b" ")[2])
            if value is not None:
                found = (found or 0.0) + value
            start = page.find(mark, start + 1)
    return found


def _number(text: bytes) -> float | None:
    """Zero or more; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value < 1e18 else None
