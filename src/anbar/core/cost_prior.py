"""What a router expects of an engine before it has seen it work, from the content of its cost file."""

from anbar.core.cost import EngineCost, LoadCost, PrefillCost
from anbar.core.cost_file import CostFile

_SHORTEST, _MOST_STEPS = 16, 16
"""Prompts of 16 tokens to 16 full steps, doubling, are what overhead and linear part are fitted to."""

_ANSWERS, _CONTEXT = 16, 1000
"""Answers, and tokens of each, for which their cost is taken."""


def prefill_prior(content: CostFile) -> PrefillCost:
    """Overhead, linear and quadratic part of prompts computed alone.

    The quadratic part is the file's. The others are the straight line that is closest, in relative error, to
    what the file's curve of steps says of whole prompts; neither is negative.
    """
    cost, budget = content.cost, content.engine.max_num_batched_tokens
    lengths = [_SHORTEST]
    while 2 * lengths[-1] <= _MOST_STEPS * budget:
        lengths.append(2 * lengths[-1])
    rows = [(length, _linear_s(cost, length, budget)) for length in lengths]
    overhead, a = _line([(x, y, y + cost.prefill_s_per_token2 * x**2) for x, y in rows])
    if overhead < 0:
        overhead, a = 0.0, _slope(rows)
    return PrefillCost(a, cost.prefill_s_per_token2, overhead, _s_per_answer(content))


def host_load(content: CostFile) -> LoadCost:
    """Loading from host memory, block by block."""
    load, kind = content.cost.load, content.engine
    per_token = load.s_per_byte * kind.kv_bytes_per_token + load.s_per_copy / kind.block_size
    return LoadCost(per_token, load.latency_s)


def _s_per_answer(content: CostFile) -> float:
    """A running answer's part of one step and a half: of the one in which a prompt arrives half is left on
    average, and then it is computed in one or more."""
    cost, most = content.cost, _ANSWERS
    computing_s = (cost.tokens.seconds(1 + most) - cost.tokens.seconds(1)) / most
    reading_s = cost.decode_s_per_kv_byte * content.engine.kv_bytes_per_token * _CONTEXT
    return 1.5 * (computing_s + reading_s)


def _linear_s(cost: EngineCost, num_tokens: int, budget: int) -> float:
    """A prompt alone, without attention: full steps and what is left, and what is outside of steps."""
    full, rest = divmod(num_tokens, budget)
    return cost.front_s + full * cost.tokens.seconds(budget) + cost.tokens.seconds(rest)


def _line(rows: list[tuple[int, float, float]]) -> tuple[float, float]:
    """Least squares of (overhead + a x - y) / whole over rows of x, y and whole."""
    ss = sx = sxx = sy = sxy = 0.0
    for x, y, whole in rows:
        if whole <= 0:
            continue
        weight = 1 / whole**2
        ss += weight
        sx += weight * x
        sxx += weight * x * x
        sy += weight * y
        sxy += weight * x * y
    determinant = ss * sxx - sx * sx
    if determinant <= 0:
        return 0.0, 0.0
    return (sy * sxx - sx * sxy) / determinant, (ss * sxy - sx * sy) / determinant


def _slope(rows: list[tuple[int, float]]) -> float:
    """The same without overhead: the mean of y / x."""
    return sum(y / x for x, y in rows) / len(rows)
