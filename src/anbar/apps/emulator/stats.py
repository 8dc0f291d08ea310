"""What an emulated engine measures of its requests, as vLLM does (`v1/metrics/stats.py`, `loggers.py`)."""

from anbar.apps.emulator.answers import Finish
from anbar.apps.emulator.histograms import (
    INTER_TOKEN_LATENCY,
    ITERATION_TOKENS,
    NUM_PREEMPTIONS,
    PARAMS_N,
    REQUEST_LATENCY,
    TIME_TO_FIRST_TOKEN,
    Histogram,
    request_tokens,
)
from anbar.apps.emulator.sequence import SequenceRun
from anbar.apps.emulator.tier_stats import TierStats
from anbar.sim.engine.counters import Counters
from anbar.sim.engine.step import StepResult

_PHASES = {
    "e2e": ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds."),
    "queue": ("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request."),
    "inference": ("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request."),
    "prefill": ("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request."),
    "decode": ("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request."),
}


def _latency(name: str, text: str, bounds: tuple[float, ...] = REQUEST_LATENCY) -> Histogram:
    return Histogram(f"vllm:{name}", text, bounds)


class RequestStats:
    """Histograms and finish reasons. Times of the model's clock are shown as they passed: divided by
    `speed`."""

    def __init__(
        self, max_model_len: int, speed: float, *, generates: bool = True, tiers: TierStats | None = None
    ) -> None:
        """`generates` False: of a pooling model, whose answers vLLM counts as no tokens. `tiers` None: there
        are none below the device."""
        self.tiers = tiers
        self._speed = speed
        self._generates = generates
        self.finished = {"stop": 0, "length": 0, "abort": 0, "error": 0, "repetition": 0}
        lengths = request_tokens(max_model_len)
        self._prompt = Histogram("vllm:request_prompt_tokens", "Number of prefill tokens processed.", lengths)
        self._generation = Histogram(
            "vllm:request_generation_tokens", "Number of generation tokens processed.", lengths
        )
        self._iteration = Histogram(
            "vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", ITERATION_TOKENS
        )
        self._max_generation = Histogram(
            "vllm:request_max_num_generation_tokens",
            "Histogram of maximum number of requested generation tokens.",
            lengths,
        )
        self._n = Histogram("vllm:request_params_n", "Histogram of the n request parameter.", PARAMS_N)
        self._max_tokens = Histogram(
            "vllm:request_params_max_tokens", "Histogram of the max_tokens request parameter.", lengths
        )
        self._ttft = _latency(
            "time_to_first_token_seconds", "Histogram of time to first token in seconds.", TIME_TO_FIRST_TOKEN
        )
        self._itl = _latency(
            "inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", INTER_TOKEN_LATENCY
        )
        self._tpot = _latency(
            "request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            INTER_TOKEN_LATENCY,
        )
        self._phases = {name: _latency(*about) for name, about in _PHASES.items()}
        self._preemptions = Histogram(
            "vllm:request_num_preemptions",
            "Histogram of the number of times a request was preempted.",
            NUM_PREEMPTIONS,
        )
        self._computed = Histogram(
            "vllm:request_prefill_kv_computed_tokens",
            "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
            lengths,
        )

    def histograms(self) -> list[Histogram]:
        """All of them, in vLLM's order."""
        return [
            *(self._prompt, self._generation, self._iteration, self._max_generation, self._n),
            *(self._max_tokens, self._ttft, self._itl, self._tpot, *self._phases.values()),
            *(self._preemptions, self._computed),
        ]

    def step_ended(self, result: StepResult) -> None:
        """A step is over. vLLM counts a prompt's computed tokens when its first token comes, all at once."""
        if not result.outputs:
            return
        num_tokens = 0
        for output in result.outputs:
            request = output.request
            num_tokens += output.num_tokens if self._generates else 0
            if request.num_generated == output.num_tokens:
                num_tokens += request.num_prompt_tokens - request.num_cached_tokens
        self._iteration.observe(num_tokens)

    def tokens(self, run: SequenceRun, at_s: float) -> None:
        """A sequence got tokens."""
        times = run.times
        if times.first_token_s < 0:
            times.first_token_s = at_s
            self._ttft.observe((at_s - times.arrived_s) / self._speed)
        else:
            self._itl.observe((at_s - times.last_token_s) / self._speed)
        times.last_token_s = at_s

    def sequence_finished(self, run: SequenceRun, finish: Finish, max_tokens: int) -> None:
        """A sequence ended, by itself or not."""
        self.finished[finish.value] += 1
        times, request, speed = run.times, run.request, self._speed
        if times.last_token_s < 0:
            return
        decode_s = times.last_token_s - times.first_token_s
        self._phases["e2e"].observe((times.last_token_s - times.arrived_s) / speed)
        self._phases["queue"].observe((times.scheduled_s - times.arrived_s) / speed)
        self._phases["inference"].observe((times.last_token_s - times.scheduled_s) / speed)
        self._phases["prefill"].observe((times.first_token_s - times.scheduled_s) / speed)
        self._phases["decode"].observe(decode_s / speed)
        num_generated = request.num_generated if self._generates else 0
        self._tpot.observe(decode_s / speed / (num_generated - 1) if num_generated > 1 else 0.0)
        self._preemptions.observe(request.num_preemptions)
        self._computed.observe(request.num_prompt_tokens - request.num_cached_tokens)
        self._prompt.observe(request.num_prompt_tokens)
        self._generation.observe(num_generated)
        if self._generates:
            self._max_tokens.observe(max_tokens)
        else:
            self.prompt_finished(1, 0)

    def num_generated(self, counters: Counters) -> int:
        """Tokens as vLLM counts them."""
        return counters.num_generated if self._generates else 0

    def prompt_finished(self, n: int, most_generated: int) -> None:
        """All sequences of one prompt ended."""
        self._n.observe(n)
        self._max_generation.observe(most_generated)
