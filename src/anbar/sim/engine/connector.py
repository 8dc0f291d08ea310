"""What joins the scheduler with the tiers below the device: vLLM's offloading connector."""

from collections.abc import Sequence
from typing import Protocol

from anbar.sim.engine.events import EngineEvent
from anbar.sim.engine.request import EngineRequest
from anbar.sim.engine.step import Step


class Connector(Protocol):
    """The scheduler's side of vLLM's KV connector."""

    @property
    def has_work(self) -> bool:
        """Whether steps must go on although no request needs any."""
        ...

    def open(self, request: EngineRequest) -> None:
        """A request came."""

    def match(self, request: EngineRequest, num_local: int) -> int | None:
        """How many tokens after `num_local` can be loaded; None: ask again in the next step."""

    def load(self, request: EngineRequest, num_local_blocks: int, num_tokens: int) -> None:
        """Load what was matched into the request's blocks, which have been taken."""

    def plan(self, step: Step, ended: Sequence[EngineRequest]) -> None:
        """The step is planned: say what it copies."""

    def finish(self) -> list[EngineRequest]:
        """The step is over: the requests whose loads are over too."""
        ...

    def close(self, request: EngineRequest) -> None:
        """A request ended; its blocks are still its own."""

    def take_events(self) -> list[EngineEvent]:
        """What happened to the tiers since the last call."""
        ...
