"""One run of tokens in the engine model: a prompt, the answer to it, and who hears of each token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anbar.adapters.vllm.block_hash import PLAIN, ROOT, Identity, extend
from anbar.apps.emulator.answers import Answer
from anbar.apps.emulator.transfer_params import NOTHING, TransferParams
from anbar.core.ids import RequestId
from anbar.sim.engine.request import EngineRequest


class TokenKeys:
    """Block keys of real tokens: vLLM's own hashes, computed as they are asked for."""

    __slots__ = (
        *("_answer", "_hashes", "_num_prompt_tokens", "_tokens", "block_size", "identity", "lora_id"),
        *("root", "session"),
    )

    def __init__(
        self, prompt: Sequence[int], answer: Answer, block_size: int, identity: Identity = PLAIN
    ) -> None:
        self._num_prompt_tokens = len(prompt)
        self._tokens: Sequence[int] = prompt
        """The prompt, and the answer as far as it was needed."""
        self._answer = answer
        self._hashes: list[bytes] = []
        self.block_size = block_size
        self.identity = identity
        self.lora_id: int | None = None
        """vLLM's number of the adapter in `identity`."""
        self.root = ROOT
        """The parent of the first block."""
        self.session: str | None = None
        """The request's `session_id`, which events repeat."""

    def first(self, num_blocks: int) -> Sequence[bytes]:
        """The hashes of the first `num_blocks` full blocks, which may reach into the answer."""
        if len(self._hashes) < num_blocks:
            end = num_blocks * self.block_size
            extend(self._hashes, self._first(end), self.block_size, num_blocks, self.identity, self.root)
        return self._hashes if len(self._hashes) == num_blocks else self._hashes[:num_blocks]

    def tokens(self, first_block: int, num_blocks: int) -> list[int]:
        """The tokens of full blocks, as events show them."""
        start, end = first_block * self.block_size, (first_block + num_blocks) * self.block_size
        return list(self._first(end)[start:end])

    def _first(self, num_tokens: int) -> Sequence[int]:
        """At least so many tokens. The list grows with the answer, so that long ones are not copied often."""
        known = self._tokens
        if len(known) >= num_tokens:
            return known
        if not isinstance(known, list):
            known = self._tokens = list(known)
        answered = self._answer.first(num_tokens - self._num_prompt_tokens)
        known += answered[len(known) - self._num_prompt_tokens :]
        return known


def _nothing() -> None:
    """Nobody to tell."""


def _no_tokens(number: int, finished: bool) -> None:
    """Nobody to tell."""


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """A sequence that is to run."""

    name: str
    """The request's id; the engine's own adds a number, since clients may repeat theirs."""
    prompt: Sequence[int]
    answer: Answer
    identity: Identity = PLAIN
    session: str | None = None
    reads_cache: bool = True
    transfer: TransferParams = NOTHING
    give_up: Callable[[], None] = _nothing
    """Ends the request when what is done with its tokens fails."""
    num_text_tokens: int = 0
    """Of a prompt that came as text and has to be tokenized first."""


@dataclass(slots=True)
class Times:
    """When a sequence passed its stations, in seconds of the model's clock; negative: not yet."""

    arrived_s: float
    scheduled_s: float = -1.0
    first_token_s: float = -1.0
    last_token_s: float = -1.0

    def reported(self, num_tokens: int, speed: float) -> dict[str, float | None]:
        """What vLLM tells of them with `--enable-per-request-metrics` (0.32, `PerRequestMetrics`), in
        milliseconds on the wall's clock."""

        def ms(start_s: float, end_s: float) -> float | None:
            return (end_s - start_s) / speed * 1000 if start_s >= 0 and end_s >= 0 else None

        decode_ms, whole_ms = (
            ms(self.first_token_s, self.last_token_s),
            ms(self.scheduled_s, self.last_token_s),
        )
        return {
            "time_to_first_token_ms": ms(self.scheduled_s, self.first_token_s),
            "generation_time_ms": decode_ms,
            "queue_time_ms": ms(self.arrived_s, self.scheduled_s),
            "mean_itl_ms": decode_ms / (num_tokens - 1) if decode_ms is not None and num_tokens > 1 else None,
            "tokens_per_second": num_tokens / whole_ms * 1000 if whole_ms else None,
            "speculative_decoding": None,
        }


class SequenceRun:
    """A sequence while the engine has it. `on_tokens(number, finished)` is called at the end of each step
    that generated some; `on_abort()` when the engine itself gave it up; `give_up()` when one fails."""

    __slots__ = ("give_up", "keys", "num_text_tokens", "on_abort", "on_tokens", "request", "times")

    def __init__(
        self,
        request: EngineRequest,
        keys: TokenKeys,
        on_tokens: Callable[[int, bool], None],
        on_abort: Callable[[], None],
        arrival_s: float,
    ) -> None:
        self.request = request
        self.keys = keys
        self.on_tokens = on_tokens
        self.on_abort = on_abort
        self.give_up: Callable[[], None] = _nothing
        self.num_text_tokens = 0
        self.times = Times(arrival_s)

    def forget(self) -> None:
        """Nothing more will be said. Without listeners, which know their run, it is freed at once."""
        self.on_tokens, self.on_abort, self.give_up = _no_tokens, _nothing, _nothing

    @property
    def id(self) -> RequestId:
        return self.request.id
