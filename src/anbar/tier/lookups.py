"""Which keys the store holds, asked without ever waiting.

The engine's scheduler asks key by key, every step, until it gets an answer. A first question is noted, sent
to the store in a batch at the end of the step, and answered RETRY meanwhile. Promises to the scheduler:

- every question is answered HIT or MISS within the request's bound, whatever the store does; where another
  engine is storing what is asked for (`Wish.expect_tokens`), a miss is no answer until then, but a reason to
  ask the store again;
- once a load failed for a request, that request gets MISS for the key for ever, so it cannot loop;
- a key that was loaded twice for a request and evicted from host RAM before use both times is given up.

What is there is not always worth loading. All of a prompt's keys are asked for in one step, so when their
answers are there it is known how long a run of chunks the store holds, and `tier.admission` decides about the
whole of it: it is answered HIT, or MISS as if nothing were there. Until then a key that is there is RETRY, no
longer than a key behind it may still be found.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from anbar.core.clock import Clock
from anbar.tier.admission import Admission, Decision
from anbar.tier.breaker import Breaker
from anbar.tier.found import FoundRun
from anbar.tier.kept_out import KeptOut, Place, Shadow
from anbar.tier.store import Outcome, Scope
from anbar.tier.tally import Series, Tally
from anbar.tier.wish import Wish

MAX_LOADS = 2
"""Loads of one key for one request. A second may be needed after a preemption; more means that host RAM is
too small for the requests that wait together, which evict each other's promotions."""

ASK_AGAIN_S = 0.01
"""Between two questions for a key that is expected and was missing: a fraction of what computing takes. Each
question costs a store a look for each key."""


class Answer(Enum):
    """To the question whether the shared tier holds a key."""

    HIT = "hit"
    MISS = "miss"
    RETRY = "retry"
    """Not known yet: ask again in a later step."""


@dataclass(frozen=True, slots=True)
class Question:
    """Keys of one scope to be looked up by one call on the store."""

    scope: Scope
    keys: tuple[bytes, ...]


@dataclass(slots=True)
class _Request:
    wish: Wish
    answers: dict[bytes, Answer] = field(default_factory=dict)
    asked_s: dict[bytes, float] = field(default_factory=dict)
    loads: dict[bytes, int] = field(default_factory=dict)
    given_up: set[bytes] = field(default_factory=set)
    expected: set[bytes] = field(default_factory=set)
    """Keys that another engine is storing."""
    missing_s: dict[bytes, float] = field(default_factory=dict)
    """When the store last said of such a key that it is not there."""
    since_s: float | None = None
    """When the request asked its first question."""
    found: FoundRun | None = None
    """None: what is there is loaded."""
    missing: dict[bytes, Place | None] = field(default_factory=dict)
    """Keys that were not there when the request first asked, and why if they had been kept out; none of those
    while nothing is kept out."""


class Lookups:
    """Owned by the scheduler's thread."""

    def __init__(
        self,
        clock: Clock,
        breaker: Breaker,
        tally: Tally,
        *,
        timeout_s: float,
        batch_keys: int = 256,
        admission: Admission | None = None,
    ) -> None:
        """`admission` None: whatever is there is loaded."""
        self._clock = clock
        self._breaker = breaker
        self._tally = tally
        self._timeout_s = timeout_s
        self._batch_keys = batch_keys
        self._admission = admission
        self.shadow: Shadow | None = None
        """To be told what was missing."""
        self._step = 0
        self._requests: dict[str, _Request] = {}
        self._waiting: dict[Scope, dict[bytes, list[str]]] = {}
        """Who waits for a key, from its first question until the store's answer."""
        self._unsent: dict[Scope, list[bytes]] = {}

    def open(self, request: str, wish: Wish) -> None:
        """A request may ask from now on; what an earlier one of the same name asked is forgotten."""
        self.close(request)
        is_weighed = self._admission is not None and not wish.expect_tokens
        self._requests[request] = _Request(wish, found=FoundRun() if is_weighed else None)

    def reconsider(self, request: str) -> None:
        """A request begins anew: what is there of its prefix may be longer, or worth more."""
        state = self._requests.get(request)
        if state is not None and state.found is not None:
            state.found = FoundRun()

    def decision(self, request: str) -> Decision:
        """Why what is there is loaded for a request."""
        state = self._requests.get(request)
        found = state.found if state is not None else None
        return (found.decision if found is not None else None) or Decision.UNWEIGHED

    def close(self, request: str) -> None:
        """A request asks no more; what the store still answers for it is ignored."""
        state = self._requests.pop(request, None)
        if state is None:
            return
        if state.missing and self.shadow is not None:
            self.shadow.asked(state.asked_s, state.answers, state.missing, state.wish.prefill)
        waiting = self._waiting.get(state.wish.scope)
        if waiting:
            for key in state.asked_s.keys() & waiting.keys():
                _leave(waiting[key], request)

    def answer(self, request: str, key: bytes, end_token: int | None = None, chunk_tokens: int = 0) -> Answer:
        """HIT, MISS or RETRY, at once. `end_token`: of the prompt's tokens, how many the key and those before
        it stand for; `chunk_tokens`: how many the key alone."""
        state = self._requests.get(request)
        if state is None or state.wish.bypass:
            return Answer.MISS
        found = state.found
        if found is not None and end_token is not None and key not in found.places:
            found.place(key, end_token, self._step)
        known = state.answers.get(key)
        if known is Answer.HIT:
            return self._hit(state, key, chunk_tokens)
        if known is not None:
            return known
        if self._breaker.is_open():
            return self._resolve(state, key, Answer.MISS, "refused")
        if end_token is not None and end_token <= state.wish.expect_tokens:
            state.expected.add(key)
        now_s = self._clock.now_s()
        if key not in state.asked_s:
            self._ask(request, state, key, now_s)
            return Answer.RETRY
        if not self._is_late(state, key):
            if now_s - state.missing_s.get(key, now_s) >= ASK_AGAIN_S:
                self._ask(request, state, key, now_s)
            return Answer.RETRY
        _leave(self._waiting.get(state.wish.scope, {}).get(key, []), request)
        return self._resolve(state, key, Answer.MISS, "late" if key in state.missing_s else "timeout")

    def take_questions(self) -> list[Question]:
        """What was asked since the last call and someone still waits for; call once at the end of a step."""
        self._step += 1
        unsent, self._unsent = self._unsent, {}
        questions: list[Question] = []
        for scope, keys in unsent.items():
            wanted = self._wanted(scope, keys)
            starts = range(0, len(wanted), self._batch_keys)
            questions += [Question(scope, tuple(wanted[i : i + self._batch_keys])) for i in starts]
        return questions

    def settle(self, question: Question, outcomes: Sequence[Outcome] | None) -> None:
        """The store's answer, one outcome per key; None when the breaker refused the call."""
        scope, requests = question.scope, self._requests
        waiting = self._waiting.get(scope, {})
        results = outcomes if outcomes is not None else (None,) * len(question.keys)
        resolved: list[Outcome | None] = []
        kept_out = self._kept_out()
        for key, outcome in zip(question.keys, results, strict=True):
            for request in waiting.pop(key, ()):
                state = requests[request]
                if outcome is Outcome.MISS and key in state.expected:
                    state.missing_s[key] = self._clock.now_s()
                else:
                    state.answers[key] = Answer.HIT if outcome is Outcome.HIT else Answer.MISS
                    resolved.append(outcome)
                    if kept_out is not None and outcome is not Outcome.HIT:
                        gone = outcome is Outcome.MISS
                        state.missing[key] = kept_out.find(scope, key) if gone else None
        if not waiting:
            self._waiting.pop(scope, None)
        self._tally.outcomes(Series.LOOKUPS, resolved, scope)

    def loading(self, request: str, keys: Iterable[bytes]) -> None:
        """Keys are being loaded for a request."""
        state = self._requests.get(request)
        if state is not None:
            for key in keys:
                state.loads[key] = state.loads.get(key, 0) + 1

    def stored(self, request: str, keys: Iterable[bytes]) -> None:
        """Keys of a request were stored: should it be preempted and evicted from host RAM, it may load them,
        although they were missing when it first asked."""
        state = self._requests.get(request)
        if state is not None:
            for key in keys:
                if key in state.answers and key not in state.given_up:
                    state.answers[key] = Answer.HIT

    def give_up(self, request: str, keys: Iterable[bytes]) -> None:
        """Keys could not be loaded for a request: it gets MISS for them from now on."""
        state = self._requests.get(request)
        if state is not None:
            state.given_up.update(keys)
            state.answers.update(dict.fromkeys(state.given_up, Answer.MISS))

    def _hit(self, state: _Request, key: bytes, chunk_tokens: int) -> Answer:
        if state.loads.get(key, 0) >= MAX_LOADS:
            state.given_up.add(key)
            return self._resolve(state, key, Answer.MISS, "spent")
        found = state.found
        if found is None or (found.decision is None and key not in found.places):
            return Answer.HIT
        if found.decision is None:
            self._weigh(state, found, key, chunk_tokens)
        if found.decision is None:
            return Answer.RETRY
        return Answer.HIT if found.decision.loads else Answer.MISS

    def _weigh(self, state: _Request, found: FoundRun, key: bytes, chunk_tokens: int) -> None:
        assert self._admission is not None
        end = found.extend(state.answers, Answer.HIT)
        if end is None:  # all that were asked for are there; there may be more to ask for in this step
            is_whole = found.step < self._step
        else:
            is_whole = end in state.answers or self._is_late(state, end)
        if found.places[key] >= found.length:
            found.decision = Decision.UNWEIGHED if is_whole else None
        elif found.is_new() or is_whole:
            run = found.run(chunk_tokens)
            found.decision = self._admission.decide(run, state.wish.prefill, is_whole=is_whole)
            if found.decision is Decision.SKIP:
                self._tally.add(Series.LOOKUPS, "skipped_by_break_even", found.length, scope=state.wish.scope)

    def _ask(self, request: str, state: _Request, key: bytes, now_s: float) -> None:
        scope = state.wish.scope
        state.asked_s[key] = now_s
        state.missing_s.pop(key, None)
        if state.since_s is None:
            state.since_s = now_s
        waiting = self._waiting.get(scope)
        if waiting is None:
            waiting = self._waiting[scope] = {}
        waiters = waiting.get(key)
        if waiters is None:
            waiting[key] = [request]
            unsent = self._unsent.get(scope)
            if unsent is None:
                unsent = self._unsent[scope] = []
            unsent.append(key)
        elif request not in waiters:
            waiters.append(request)

    def _resolve(self, state: _Request, key: bytes, answer: Answer, label: str) -> Answer:
        state.answers[key] = answer
        if self._kept_out() is not None:
            state.missing[key] = None
        self._tally.add(Series.LOOKUPS, label, scope=state.wish.scope)
        return answer

    def _kept_out(self) -> KeptOut | None:
        """None: nothing is kept out, and what is missing is missing."""
        kept_out = self.shadow.kept_out if self.shadow is not None else None
        return None if kept_out is None or kept_out.is_empty else kept_out

    def _is_late(self, state: _Request, key: bytes) -> bool:
        """Whether a key that was asked for has been waited for long enough. The delay of expected ones counts
        all together."""
        since_s = state.since_s if key in state.expected else None
        bound_s = self._timeout_s if state.wish.wait_s is None else state.wish.wait_s
        return self._clock.now_s() - (state.asked_s[key] if since_s is None else since_s) >= bound_s

    def _wanted(self, scope: Scope, keys: Sequence[bytes]) -> list[bytes]:
        """Of these keys, those that someone still waits for; the others are forgotten."""
        waiting = self._waiting[scope]
        wanted = [key for key in keys if waiting[key]]
        if len(wanted) < len(keys):
            for key in keys:
                if not waiting[key]:
                    del waiting[key]
            if not waiting:
                del self._waiting[scope]
        return wanted


def _leave(waiters: list[str], request: str) -> None:
    if request in waiters:
        waiters.remove(request)
