"""How fast an emulated engine is: costs that can change while it runs, and time that can run faster."""

import asyncio

from anbar.core.cost import EngineCost, TokenCurve
from anbar.sim.engine.pace import StepCost
from anbar.sim.engine.shape import EngineShape
from anbar.sim.engine.step import Step

_FAR = 1_000_000
"""Tokens: beyond any step."""


class LivePace:
    """The step cost that the engine model asks, replaceable at any time: the next step has the new one."""

    def __init__(self, cost: EngineCost) -> None:
        self.cost = cost

    @property
    def cost(self) -> EngineCost:
        """What steps take now."""
        return self._cost

    @cost.setter
    def cost(self, cost: EngineCost) -> None:
        self._cost = cost
        self._step = StepCost(cost)

    def seconds(self, step: Step, shape: EngineShape) -> float:
        """Seconds of the model's clock."""
        return self._step.seconds(step, shape)


def steady(*, step_s: float = 0.0, prefill_s_per_token: float = 0.0, front_s: float = 0.0) -> EngineCost:
    """A simple cost: `step_s` for each step (so between the tokens of an answer), `prefill_s_per_token` for
    each prompt token that is computed, `front_s` for each request before it joins the queue."""
    if not step_s and not prefill_s_per_token:
        return EngineCost(front_s=front_s)
    last_s = step_s + (_FAR - 1) * prefill_s_per_token
    return EngineCost(tokens=TokenCurve(((1, step_s), (_FAR, last_s))), front_s=front_s)


class ModelClock:
    """The model's time: the event loop's, `speed` times as fast; the same for all engines of a process, which
    may share a store."""

    def __init__(self, loop: asyncio.AbstractEventLoop, speed: float) -> None:
        self.speed = speed
        self._loop = loop

    def now_s(self) -> float:
        """Seconds of the model's clock."""
        return self._loop.time() * self.speed

    def loop_time_s(self, model_s: float) -> float:
        """When the event loop's clock shows that time."""
        return model_s / self.speed
