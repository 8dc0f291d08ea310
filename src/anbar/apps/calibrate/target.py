"""The port to the engine that is measured, and what comes over it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from anbar.apps.calibrate.metrics_page import Counters


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine says of itself."""

    url: str
    model: str
    """A name that it serves."""
    root: str
    """What it was loaded from."""
    vllm: str
    max_model_len: int
    block_size: int
    num_blocks: int
    """Of the device; 0: it does not say."""
    has_offload: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for `num_tokens` tokens, sent `delay_s` after the first of its batch."""

    prompt: tuple[int, ...]
    num_tokens: int
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """One answer: when each token came, on one clock for all of a batch."""

    sent_s: float
    token_s: tuple[float, ...]
    num_prompt_tokens: int
    num_cached: int

    @property
    def ttft_s(self) -> float:
        return self.token_s[0] - self.sent_s


class Target(Protocol):
    """An engine that can be measured. All calls raise MeasureError when it cannot."""

    async def run(self, asks: Sequence[Ask]) -> list[Timeline]:
        """Send them all and wait for their answers, in the order of `asks`."""
        ...

    async def counters(self) -> Counters: ...

    async def clear_device(self) -> bool:
        """Drop what the device has cached, what is below it kept; False where the engine cannot."""
        ...

    async def tokenize_s(self, text: str) -> tuple[float, int]:
        """Seconds to tokenize `text` over the API, and the number of its tokens."""
        ...


class Counted:
    """A `Target` that counts the prompt tokens it was asked for."""

    def __init__(self, target: Target) -> None:
        self.num_prompt_tokens = 0
        self._target = target

    async def run(self, asks: Sequence[Ask]) -> list[Timeline]:
        timelines = await self._target.run(asks)
        self.num_prompt_tokens += sum(timeline.num_prompt_tokens for timeline in timelines)
        return timelines

    async def counters(self) -> Counters:
        return await self._target.counters()

    async def clear_device(self) -> bool:
        return await self._target.clear_device()

    async def tokenize_s(self, text: str) -> tuple[float, int]:
        return await self._target.tokenize_s(text)
