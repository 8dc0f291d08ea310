"""Counts what happens in a run, and looks at the engines now and then."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from anbar.apps.simulate.ask import Ask
from anbar.apps.simulate.result import Percentiles, Result, Samples, Stream, Tokens, cdf
from anbar.apps.simulate.setup import Slo
from anbar.sim.engine.engine import Engine, Running
from anbar.sim.engine.request import EngineRequest

_NUM_SAMPLES = 120
"""Wanted until the last request that comes anyhow."""
_NICE_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)


@dataclass(slots=True)
class _Stream:
    ttft_s: list[float] = field(default_factory=list)
    prompt: int = 0
    cached: int = 0


@dataclass(slots=True)
class _Totals:
    """Tokens of prompts."""

    prompt: int = 0
    device: int = 0
    host: int = 0
    shared: int = 0
    transferred: int = 0
    computed: int = 0


@dataclass(frozen=True, slots=True)
class Answered:
    """One request, with its times and the tokens of its prompt that were prefix hits."""

    ask: Ask
    first_s: float
    ended_s: float
    num_cached: int


class Recorder:
    """`arrived`, `reused` and `answered` for each request, `started` for each step, `look` before time passes
    `next_s`."""

    def __init__(self, slo: Slo, engines: Sequence[Engine], asks: Sequence[Ask]) -> None:
        self._slo, self._engines = slo, engines
        self._start_s = self._last_s = asks[0].at_s
        span_s = asks[-1].at_s - self._start_s
        every_s = next((nice for nice in _NICE_S if nice * _NUM_SAMPLES >= span_s), 3600.0)
        self._samples = Samples(every_s)
        self.next_s = self._start_s
        """When the next look is due."""
        self._totals = _Totals()
        self._busy_s = self._ended_s = 0.0
        self._ttft_s: list[float] = []
        self._itl_s: list[float] = []
        self._num_good = 0
        self._streams: dict[str, _Stream] = {}

    @property
    def num_done(self) -> int:
        """Requests that were answered."""
        return len(self._ttft_s)

    def arrived(self, ask: Ask) -> None:
        """A request came: whole, not a leg of one."""
        self._last_s = max(self._last_s, ask.at_s)
        self._totals.prompt += ask.num_prompt

    def reused(self, request: EngineRequest) -> None:
        """A prompt has been computed; what of it was there before?"""
        totals = self._totals
        totals.device += request.num_device_hit
        totals.shared += request.num_shared_hit
        totals.host += request.num_external_hit - request.num_shared_hit

    def transferred(self, request: EngineRequest) -> None:
        """The same, of one that another engine has computed for this one."""
        self._totals.transferred += request.num_cached_tokens

    def started(self, running: Running, now_s: float) -> None:
        """A step began. Tokens of a step that are not an answer's next one were computed for a prompt."""
        step = running.step
        if not step.pieces:
            return
        self._busy_s += running.ends_s - now_s
        if step.num_repeats == 1:
            self._totals.computed += sum(
                piece.num_new for piece in step.pieces if piece.num_new > 1 or not piece.request.num_generated
            )

    def answered(self, done: Answered) -> None:
        """A request has its whole answer."""
        ask = done.ask
        ttft_s = done.first_s - ask.at_s
        self._ended_s = max(self._ended_s, done.ended_s)
        self._ttft_s.append(ttft_s)
        itl_s = 0.0
        if ask.num_answer > 1:
            itl_s = (done.ended_s - done.first_s) / (ask.num_answer - 1)
            self._itl_s.append(itl_s)
        self._num_good += ttft_s <= self._slo.ttft_s and itl_s <= self._slo.itl_s
        stream = self._streams.setdefault(ask.stream, _Stream())
        stream.ttft_s.append(ttft_s)
        stream.prompt += ask.num_prompt
        stream.cached += done.num_cached

    def look(self, now_s: float) -> None:
        """Time passes to `now_s`: note what was to be seen at the looks that are due until then."""
        while self.next_s <= now_s:
            self._look(self.next_s)
            self.next_s += self._samples.every_s

    def _look(self, at_s: float) -> None:
        engines, samples, totals = self._engines, self._samples, self._totals
        samples.at_s.append(round(at_s - self._start_s, 6))
        samples.hbm.append(sum(engine.usage for engine in engines) / len(engines))
        samples.host.append(sum(map(_host_share, engines)) / len(engines))
        samples.num_running.append(sum(engine.num_running for engine in engines))
        samples.num_waiting.append(sum(engine.num_waiting for engine in engines))
        samples.num_done.append(len(self._ttft_s))
        samples.num_preemptions.append(sum(engine.counters.num_preemptions for engine in engines))
        samples.prompt.append(totals.prompt)
        samples.device.append(totals.device)
        samples.host_hits.append(totals.host)
        samples.shared.append(totals.shared)
        samples.answers.append(sum(engine.counters.num_generated for engine in engines))

    def result(self) -> Result:
        """After the last answer."""
        self._look(self._ended_s)
        counters = [engine.counters for engine in self._engines]
        samples, totals = self._samples, self._totals
        until_s = self._last_s - self._start_s
        held = [share for at_s, share in zip(samples.at_s, samples.hbm, strict=True) if at_s <= until_s]
        return Result(
            num_requests=len(self._ttft_s),
            span_s=max(self._ended_s - self._start_s, 1e-9),
            arrivals_s=until_s,
            ttft_s=Percentiles.of(self._ttft_s),
            itl_s=Percentiles.of(self._itl_s or [0.0]),
            num_good=self._num_good,
            tokens=Tokens(
                prompt=totals.prompt,
                device=totals.device,
                host=totals.host,
                shared=totals.shared,
                computed=totals.computed,
                recovered=sum(c.num_recovered_device + c.num_recovered_external for c in counters),
                transferred=totals.transferred,
                answers=sum(c.num_generated for c in counters),
            ),
            num_preemptions=sum(c.num_preemptions for c in counters),
            busy_s=self._busy_s,
            hbm_mean=sum(held) / len(held),
            hbm_peak=max(samples.hbm),
            host_peak=max(samples.host),
            ttft_cdf_s=cdf(self._ttft_s),
            streams=tuple(_told(name, stream) for name, stream in sorted(self._streams.items())),
            samples=samples,
        )


def _host_share(engine: Engine) -> float:
    if engine.connector is None:
        return 0.0
    host = engine.connector.host
    return host.num_taken / host.num_chunks


def _told(name: str, stream: _Stream) -> Stream:
    ttft_s = Percentiles.of(stream.ttft_s)
    return Stream(name, len(stream.ttft_s), ttft_s, stream.prompt, stream.cached)
