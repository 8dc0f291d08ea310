"""The arithmetic of calibration: least squares without negative costs, and what is read off timelines."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.apps.calibrate.campaign import decode_window, mixed_gap
from anbar.apps.calibrate.fit import Array, choose_knots, fit, nnls, residuals, undisturbed
from anbar.apps.calibrate.target import Timeline
from anbar.apps.calibrate.work import Kind, Sample, Work, decode_work, mixed_work, prompt_work
from anbar.core.cost import EngineCost, TokenCurve
from anbar.core.ids import RequestId
from anbar.sim.engine.pace import StepCost
from anbar.sim.engine.request import EngineRequest
from anbar.sim.engine.shape import EngineShape
from anbar.sim.engine.step import Piece, Step


def _exhaustive(matrix: Array, target: Array) -> float:
    """The smallest squared error of any x >= 0: the best of all subsets of columns without a negative
    coefficient."""
    best = float(target @ target)
    for size in range(1, matrix.shape[1] + 1):
        for columns in itertools.combinations(range(matrix.shape[1]), size):
            part = matrix[:, columns]
            x = np.linalg.lstsq(part, target, rcond=None)[0]
            if (x >= 0).all():
                rest = part @ x - target
                best = min(best, float(rest @ rest))
    return best


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 12), st.integers(-6, 6))
def test_nnls_finds_the_best(seed: int, columns: int, rows: int, magnitude: int) -> None:
    """No x >= 0 is better, also where columns differ by orders of magnitude or there are too few rows."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(rows, columns)) * 10.0 ** rng.integers(-abs(magnitude), 1, size=columns)
    target = rng.normal(size=rows)
    x = nnls(matrix, target)
    assert (x >= 0).all()
    rest = matrix @ x - target
    assert float(rest @ rest) <= _exhaustive(matrix, target) + 1e-7


def test_nnls_of_columns_without_content() -> None:
    """What no measurement depends on costs nothing."""
    assert nnls(np.zeros((3, 2)), np.ones(3)).tolist() == [0.0, 0.0]


SHAPE = EngineShape(block_size=16, num_blocks=100, kv_bytes_per_token=1)
TRUE = EngineCost(TokenCurve(((1, 0.01), (8, 0.03), (264, 0.542))), 1e-6, 1e-5, front_s=0.004)


def _true_seconds(*pieces: tuple[int, int], repeats: int = 1) -> float:
    request = EngineRequest(RequestId("r"), 1, 1, keys=[])  # type: ignore[arg-type]  # never asked
    step = Step([Piece(request, before, new) for before, new in pieces], num_repeats=repeats)
    return StepCost(TRUE).seconds(step, SHAPE)


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        (prompt_work(100, 0, 1000), _true_seconds((0, 100)) + 0.004),
        (prompt_work(100, 64, 1000), _true_seconds((64, 36)) + 0.004),
        (prompt_work(250, 0, 100), sum(_true_seconds(p) for p in ((0, 100), (100, 100), (200, 50))) + 0.004),
        (prompt_work(100, 99, 1000), _true_seconds((99, 1)) + 0.004),
        (prompt_work(96, 96, 1000), _true_seconds((95, 1)) + 0.004),
        (decode_work([50, 80], 1), _true_seconds((49, 1), (79, 1))),
        (decode_work([50, 80], 7), _true_seconds((49, 1), (79, 1), repeats=7)),
        (mixed_work([50, 80], 64), _true_seconds((49, 1), (79, 1), (0, 64))),
    ],
)
def test_work_is_priced_like_the_model_prices_steps(work: Work, seconds: float) -> None:
    """What calibration fits and what the engine model charges is one formula."""
    priced = sum(count * TRUE.tokens.seconds(tokens) for tokens, count in work.steps)
    priced += 1e-6 * work.num_pairs + 1e-5 * work.num_read + 0.004 * work.num_requests
    assert priced == pytest.approx(seconds)


def _samples(noise: float = 0.0) -> list[Sample]:
    rng = random.Random(3)
    works = [(Kind.PROMPT, prompt_work(2**k, 0, 4096)) for k in range(4, 12)]
    works += [(Kind.EXTENSION, prompt_work(cached + 64, cached, 4096)) for cached in (512, 2048)]
    works += [(Kind.DECODE, decode_work([context] * 2**k, 1)) for k in range(5) for context in (20, 1000)]
    samples = []
    for number, (kind, work) in itertools.product(range(3), works):
        exact = sum(count * TRUE.tokens.seconds(tokens) for tokens, count in work.steps)
        exact += 1e-6 * work.num_pairs + 1e-5 * work.num_read + 0.004 * work.num_requests
        samples.append(Sample(kind, str(work), number, work, exact * rng.gauss(1.0, noise)))
    return samples


def test_a_slow_round_does_not_move_the_fit() -> None:
    """One round of three in which everything took 40 % longer is outvoted by the others, not averaged in."""
    samples = [
        Sample(one.kind, one.case, one.round, one.work, one.seconds * (1.4 if one.round == 1 else 1.0))
        for one in _samples()
    ]
    found = fit(samples)
    for tokens in (1, 8, 100, 1000):
        assert found.tokens.seconds(tokens) == pytest.approx(TRUE.tokens.seconds(tokens), rel=0.02)


def test_disturbed_measurements_are_left_out() -> None:
    """Only those that took half again as long as the shortest of the same case."""
    samples = _samples()
    slow = samples[5]
    samples[5] = Sample(slow.kind, slow.case, slow.round, slow.work, slow.seconds * 1.6)
    assert undisturbed(samples) == [*samples[:5], *samples[6:]]
    assert undisturbed(samples[5:6]) == samples[5:6]


def test_noise_averages_out() -> None:
    """With 3 % of noise in each measurement steps are still right within 5 %."""
    found = fit(_samples(0.03))
    for tokens in (1, 8, 100, 1000):
        assert found.tokens.seconds(tokens) == pytest.approx(TRUE.tokens.seconds(tokens), rel=0.05)


def test_residuals() -> None:
    """Errors are shares of what was measured, by kind; the spread is that of equal cases, those included that
    were too disturbed to be fitted."""
    samples = _samples()
    first = samples[0]
    samples[0] = Sample(first.kind, first.case, first.round, first.work, first.seconds * 1.25)
    slow = [
        Sample(one.kind, one.case, 3, one.work, 3 * one.seconds)
        for one in samples
        if one.kind is Kind.DECODE and one.round == 0
    ]
    prompts, _, decodes = residuals(samples, fit(_samples()), samples + slow)
    assert (prompts.what, prompts.count) == ("prompts, nothing cached", 24)
    assert prompts.worst_error == pytest.approx(0.2)
    assert prompts.median_error == pytest.approx(0.0, abs=1e-9)
    assert prompts.spread == pytest.approx(0.0, abs=1e-9)
    assert decodes.worst_error == pytest.approx(0.0, abs=1e-9)
    assert decodes.spread == pytest.approx(2.0)


def test_knots() -> None:
    """The curve bends at sizes that were measured, apart from each other, and never past the last but one."""
    samples = [Sample(Kind.PROMPT, "", 0, Work(((size, 1),)), 1.0) for size in (1, 2, 16, 18, 64, 4096)]
    assert choose_knots(samples) == [1, 2, 16, 64]
    assert choose_knots(samples[:1]) == [1]


def _timeline(prompt: int, *token_s: float) -> Timeline:
    return Timeline(0.0, token_s, prompt, 0)


def test_the_window_in_which_all_decode() -> None:
    """From the last first token to the first last one; contexts count what each has got by then."""
    window = decode_window([_timeline(10, 1.0, 2.0, 3.0, 4.0, 5.0), _timeline(20, 2.0, 3.0, 4.0, 5.0, 6.0)])
    assert window == ([12, 21], 3, 3.0)
    assert decode_window([_timeline(10, 1.0, 2.0), _timeline(20, 3.0, 4.0)]) is None


def test_the_step_with_a_prompt_in_it() -> None:
    """The gap before the token that came with the prompt's first, the middle one of the decodes'; not if a
    decode began or ended there, nor if the tokens of two steps were read together."""
    decodes = [_timeline(10, 1.0, 2.0, 7.0, 8.0), _timeline(20, 1.1, 2.1, 7.01, 8.0)]
    late = _timeline(30, 1.0, 6.9, 7.0, 8.0)
    contexts, seconds = mixed_gap([*decodes, late], _timeline(64, 7.005)) or ([], 0.0)
    assert contexts == [12, 22, 32]
    assert seconds == pytest.approx(4.91)
    assert mixed_gap(decodes, _timeline(64, 1.0)) is None
    assert mixed_gap(decodes, _timeline(64, 9.0)) is None
    for with_the_next in ((1.0, 7.0, 7.0, 8.0), (1.0, 2.0, 8.0, 8.0), (7.0, 7.0, 8.0)):
        assert mixed_gap([*decodes, _timeline(30, *with_the_next)], _timeline(64, 7.005)) is None
