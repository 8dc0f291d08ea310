"""Engine models driven by hand: requests of fresh tokens, one step at a time, checked after each."""

from collections.abc import Sequence
from itertools import count, islice

from anbar.core.ids import RequestId
from anbar.sim.engine.engine import Engine, Running
from anbar.sim.engine.events import EngineEvent
from anbar.sim.engine.request import EngineRequest
from anbar.sim.engine.shape import EngineShape
from anbar.sim.engine.step import StepResult
from tests.unit.sim.workload import BLOCK, TokenKeys

FRESH = count(10_000)
"""Tokens that no request has had."""


def shape(num_blocks: int = 33, **changes: int) -> EngineShape:
    """Blocks of 4 tokens, no cost of KV."""
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 4 * (num_blocks - 1)}
    return EngineShape(block_size=BLOCK, num_blocks=num_blocks, **limits | changes)


def ask(name: str, prompt: Sequence[int], num_answer: int = 1, salt: int = 0) -> EngineRequest:
    """A request whose answer consists of tokens that no other has."""
    tokens = [*prompt, *islice(FRESH, num_answer)]
    return EngineRequest(RequestId(name), len(prompt), num_answer, TokenKeys(tokens, salt))


def step(engine: Engine, now_s: float = 0.0) -> tuple[Running, StepResult]:
    """One step, which must have something to do."""
    running = engine.start_step(now_s, until_s=now_s)
    assert running is not None
    engine.check_integrity()
    result = engine.finish_step()
    engine.check_integrity()
    return running, result


def pieces(running: Running) -> list[tuple[str, int, int]]:
    return [(piece.request.id, piece.num_before, piece.num_new) for piece in running.step.pieces]


def run(engine: Engine, now_s: float = 0.0) -> tuple[list[EngineEvent], float]:
    """To the end of all work; events, and when it was."""
    events: list[EngineEvent] = []
    while (running := engine.start_step(now_s, until_s=now_s)) is not None:
        now_s = running.ends_s
        events += engine.finish_step().events
        engine.check_integrity()
    return events, now_s
