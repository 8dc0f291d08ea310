"""What an engine is busy with, counted so that no path can leak: a request holds its share in a `with`."""

import math
from types import TracebackType

import msgspec
from msgspec import structs

from anbar.adapters.vllm.load_page import ReportedLoad
from anbar.core.clock import Clock
from anbar.core.cost import NO_WORK, PrefillWork
from anbar.core.events import Tier
from anbar.core.fleet import NO_PREDICTION, Prediction
from anbar.core.outcome import RequestFacts
from anbar.route.costs import Finished
from anbar.route.load_check import NO_STRANGERS, Strangers
from anbar.route.waiting import PrefillQueue, QueuedPrompt


class Plan(msgspec.Struct, frozen=True):
    """One try of one request, as it was predicted."""

    num_tokens: int
    prediction: Prediction = NO_PREDICTION
    streams: bool = True


def by_reported_times(finished: Finished, facts: RequestFacts, since_sent_s: float) -> Finished | None:
    """What a request whose answer was not streamed says of its engine, by the times that the engine reports:
    from being scheduled to the first token, whatever it had waited for. None without these, and where
    something was loaded, which vLLM counts as waiting."""
    ttft_s, queue_s = facts.reported_ttft_s, facts.reported_queue_s
    if ttft_s is None or queue_s is None or any(finished.loaded.values()):
        return None
    return structs.replace(
        finished,
        seconds=ttft_s - queue_s,
        queued=NO_WORK,
        answer_s=max(0.0, since_sent_s - ttft_s),
        is_clear=True,
    )


class EngineLoad:
    """Requests that were sent to one engine and are not over."""

    __slots__ = (
        "_marked",
        "_own",
        "held_tokens",
        "num_elsewhere",
        "num_ghosts",
        "num_in_flight",
        "queue",
        "reported",
        "strangers",
        "strangers_work",
    )

    def __init__(self) -> None:
        self.num_in_flight = 0
        """Of this router."""
        self.num_elsewhere = 0
        """Of other routers, as far as they have told."""
        self.held_tokens = 0
        """Of the prompts of all of these, less what is predicted to come from a cache."""
        self.num_ghosts = 0
        """Of this router's, those that are no load (`route/load_check.py`)."""
        self.strangers = NO_STRANGERS
        self.strangers_work = NO_WORK
        """Of those that wait, as far as it can be guessed."""
        self.reported: ReportedLoad | None = None
        """What the engine said last; None when it did not."""
        self._own: dict[Share, None] = {}
        """This router's that are in flight and no ghosts. Another router's are its own to judge."""
        self._marked: dict[Share, None] = {}
        """Those of them that were there at the last mark."""
        self.queue = PrefillQueue()
        """Prompts without a first token, less what is predicted to come from a cache."""

    @property
    def queued_prefill_tokens(self) -> int:
        return self.queue.tokens

    @property
    def num_decoding(self) -> int:
        """Requests past their first token."""
        return self.num_in_flight + self.num_elsewhere - len(self.queue)

    def add_elsewhere(self, prompt: QueuedPrompt, now_s: float) -> None:
        """Another router sends a request there."""
        self.num_elsewhere += 1
        self.held_tokens += prompt.work.tokens
        self.queue.add(prompt, now_s)

    def drop_elsewhere(self, prompt: QueuedPrompt, now_s: float) -> None:
        """It is over."""
        self.num_elsewhere -= 1
        self.held_tokens -= prompt.work.tokens
        self.queue.discard(prompt, now_s)

    @property
    def num_believed(self) -> int:
        """Requests that the engine was sent and has, from here and from other routers that have told."""
        return self.num_in_flight + self.num_elsewhere - self.num_ghosts

    @property
    def believed_tokens(self) -> int:
        """What they hold of its KV cache beyond what was cached; as if all held as much, where some are not
        believed."""
        if not self.num_ghosts:
            return self.held_tokens
        return self.held_tokens * self.num_believed // (self.num_in_flight + self.num_elsewhere)

    @property
    def num_streams(self) -> int:
        """Answers that it generates, whoever asked for them."""
        return self.num_believed - len(self.queue) + self.strangers.num_running

    def meet(self, strangers: Strangers, work: PrefillWork) -> None:
        """Others have so much there."""
        self.strangers, self.strangers_work = strangers, work

    def mark(self) -> None:
        """Remember what is in flight now."""
        self._marked = dict(self._own)

    def drop_marked(self, now_s: float) -> int:
        """What was in flight at the last mark and still is counts as load no more; returns how many."""
        dropped, self._marked = self._marked, {}
        self.num_ghosts += len(dropped)
        for share in dropped:
            del self._own[share]
            share.is_no_load(now_s)
        return len(dropped)

    def comes(self, share: "Share") -> None:
        """A request of this router is sent."""
        self.num_in_flight += 1
        self._own[share] = None

    def goes(self, share: "Share") -> None:
        """It is over."""
        self.num_in_flight -= 1
        if share in self._own:
            del self._own[share]
            self._marked.pop(share, None)
        else:
            self.num_ghosts -= 1

    def hold(self, plan: Plan, clock: Clock) -> "Share":
        """Use as `with load.hold(plan, clock) as share:` around one try of one request."""
        return Share(self, plan, clock)


class Share:
    """One request's part of an engine's load."""

    __slots__ = (
        "_before",
        "_clock",
        "_first_s",
        "_is_clear",
        "_load",
        "_num_decoding",
        "_plan",
        "_prompt",
        "_seconds",
        "_started_s",
    )

    def __init__(self, load: EngineLoad, plan: Plan, clock: Clock) -> None:
        match = plan.prediction.match
        num_cached = match.total
        work = PrefillWork.of(plan.num_tokens, num_cached) if plan.num_tokens else NO_WORK
        loads = num_cached > match.device
        self._prompt = QueuedPrompt(work, plan.prediction.prefill_s, plan.streams, loads)
        self._plan = plan
        self._load = load
        self._clock = clock
        self._before = NO_WORK
        self._is_clear = True
        self._num_decoding = 0
        self._started_s = self._seconds = 0.0
        self._first_s = math.nan

    def __enter__(self) -> "Share":
        now_s, queue = self._clock.now_s(), self._load.queue
        queue.pass_time(now_s)
        self._before, self._started_s = queue.work, now_s - queue.done_s(now_s)
        self._is_clear = queue.num_loading == 0
        self._num_decoding = self._load.num_streams
        self._load.comes(self)
        self._load.held_tokens += self._prompt.work.tokens
        queue.add(self._prompt, now_s)
        return self

    def is_no_load(self, now_s: float) -> None:
        """The engine has long said that it has nothing: it is a ghost until its end."""
        self._load.queue.discard(self._prompt, now_s)

    def first_byte(self, status: int = 200) -> None:
        """The prefill is over, or, with the status of an error, there is none."""
        now_s = self._clock.now_s()
        if status >= 400:
            self._load.queue.discard(self._prompt, now_s)
            return
        self._seconds = now_s - self._started_s
        if self._plan.streams:
            self._first_s = now_s
        if not self._load.queue.answered(self._prompt, now_s):
            self._is_clear = False

    def finished(self, num_cached: int, num_tokens: int | None = None) -> Finished:
        """What the request, past its first byte, says of its engine. `num_cached`: what the engine reported,
        or what was predicted. More than predicted is taken to come from the device, less to be missing from
        the furthest tier. `num_tokens`: of the prompt, where the plan had but an estimate."""
        match = self._plan.prediction.match
        host = max(0, min(match.host, num_cached) - match.device)
        shared = max(0, min(match.shared, num_cached) - match.host)
        own = PrefillWork.of(self._plan.num_tokens if num_tokens is None else num_tokens, num_cached)
        loaded = {Tier.HOST: host, Tier.SHARED: shared}
        answer_s = self._clock.now_s() - self._first_s
        return Finished(
            own, self._seconds, self._before, loaded, self._num_decoding, answer_s, self._is_clear
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._load.goes(self)
        self._load.held_tokens -= self._prompt.work.tokens
        self._load.queue.discard(self._prompt, self._clock.now_s())
