"""Parametric loads: sessions that begin at a rate, or one after the other, with prompts that share parts."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random

from anbar.apps.simulate.ask import Ask
from anbar.apps.simulate.scenario import Pick, StreamConfig

_STAGGER_S = 0.05
"""Between the first requests of clients: nobody's begin at once."""
_MAX_TURNS = 1000


class Names:
    """A number for each run of blocks from the beginning of a prompt; equal runs have the same one."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, object], int] = {}

    def name(self, parent: int, content: object) -> int:
        return self._of.setdefault((parent, content), len(self._of) + 1)


class Chain:
    """A prompt that grows."""

    def __init__(self, names: Names, block_size: int, root: object) -> None:
        self._names, self._size = names, block_size
        self._last = names.name(0, root)
        self._open: list[tuple[object, int]] = []
        self._num_open = 0
        self.blocks: list[int] = []
        """Names of the full ones."""
        self.num_tokens = 0

    def add(self, segment: object, num_tokens: int) -> None:
        """`segment` stands for its tokens: equal ones have equal tokens."""
        done = 0
        while done < num_tokens:
            count = min(self._size - self._num_open, num_tokens - done)
            self._open.append((segment, done))
            self._num_open += count
            done += count
            if self._num_open == self._size:
                self._last = self._names.name(self._last, tuple(self._open))
                self.blocks.append(self._last)
                self._open.clear()
                self._num_open = 0
        self.num_tokens += num_tokens


@dataclass(slots=True)
class _Session:
    stream: int
    client: int
    """Whose it is; -1: nobody's who has another one."""
    ordinal: int
    """Of the client."""
    rng: Random
    chain: Chain
    number: int
    turn: int = 0
    answer: int = 0
    lengths: list[int] = field(default_factory=list)


class StreamLoad:
    """Sessions of all streams; for one run."""

    def __init__(
        self, streams: Sequence[StreamConfig], duration_s: float, block_size: int, seed: int
    ) -> None:
        self._streams, self._duration_s, self._seed = streams, duration_s, seed
        self._block_size = block_size
        self._names = Names()
        self._sessions: dict[int, _Session] = {}
        self._num_begun = [0] * len(streams)
        self._num_sessions = 0
        found = [ask for number in range(len(streams)) for ask in self._first(number)]
        self.asks: Sequence[Ask] = sorted(found, key=lambda ask: (ask.at_s, ask.number))
        self.longest = max(map(_longest, streams))
        pauses = [s.think_s for s in streams if s.turns > 1] + [0.0 for s in streams if s.clients]
        self.soonest_s = min(pauses, default=math.inf)

    def after(self, ask: Ask, now_s: float) -> Ask | None:
        """The session's next turn, or its client's next session."""
        session = self._sessions[ask.number // _MAX_TURNS]
        stream = self._streams[session.stream]
        if session.turn < stream.turns:
            return self._ask(session, now_s + stream.think_s)
        del self._sessions[session.number]
        if session.client < 0 or now_s >= self._duration_s:
            return None
        return self._begin(session.stream, session.client, session.ordinal + 1, now_s)

    def _first(self, number: int) -> Iterator[Ask]:
        stream = self._streams[number]
        if stream.clients is not None:
            for client in range(stream.clients):
                if (ask := self._begin(number, client, 0, client * _STAGGER_S)) is not None:
                    yield ask
            return
        assert stream.rate is not None, "one of both is given"
        rng, at_s = Random(f"{self._seed}/{number}/arrivals"), 0.0
        while (at_s := at_s + rng.expovariate(stream.rate)) < self._duration_s:
            if (ask := self._begin(number, -1, self._num_begun[number], at_s)) is None:
                return
            yield ask

    def _begin(self, number: int, client: int, ordinal: int, at_s: float) -> Ask | None:
        stream = self._streams[number]
        if stream.sessions is not None and self._num_begun[number] >= stream.sessions:
            return None
        self._num_begun[number] += 1
        self._num_sessions += 1
        rng = Random(f"{self._seed}/{number}/{client}/{ordinal}")
        root = ("adapter", number, rng.randrange(stream.adapters)) if stream.adapters else "base"
        chain = Chain(self._names, self._block_size, root)
        session = _Session(number, client, ordinal, rng, chain, self._num_sessions)
        chain.add(("shared", number), self._drawn(f"{number}/shared", stream.shared_tokens))
        place = ordinal if client < 0 else client + ordinal * (stream.clients or 1)
        prefix = _picked(stream.pick, stream.prefixes, place, rng)
        chain.add(("prefix", number, prefix), self._drawn(f"{number}/prefix/{prefix}", stream.prefix_tokens))
        if stream.documents is not None:
            documents = stream.documents
            for index in range(documents.each):
                found = _picked(documents.pick, documents.count, place * documents.each + index, rng)
                tokens = self._drawn(f"{number}/document/{found}", documents.tokens)
                chain.add(("document", number, found), tokens)
        self._sessions[session.number] = session
        return self._ask(session, at_s)

    def _ask(self, session: _Session, at_s: float) -> Ask:
        stream, chain, rng = self._streams[session.stream], session.chain, session.rng
        mine = (session.stream, session.client, session.ordinal, session.turn)
        chain.add(("question", *mine), max(1, rng.randint(*stream.question_tokens)))
        num_prompt, blocks = chain.num_tokens, tuple(chain.blocks)
        num_answer = max(1, rng.randint(*stream.answer_tokens))
        more: tuple[int, ...] = ()
        number = session.number * _MAX_TURNS + session.turn
        session.turn += 1
        if session.turn < stream.turns:
            chain.add(("answer", *mine), num_answer)
            more = tuple(chain.blocks[len(blocks) :])
        name = f"{session.stream}/{session.number}"
        return Ask(number, at_s, num_prompt, num_answer, blocks, more, session=name, stream=stream.name)

    def _drawn(self, what: str, tokens: tuple[int, int]) -> int:
        """The length of something that is the same whenever it is asked for."""
        return tokens[0] if tokens[0] == tokens[1] else Random(f"{self._seed}/{what}").randint(*tokens)


def _picked(pick: Pick, count: int, place: int, rng: Random) -> int:
    if count == 1:
        return 0
    if pick is Pick.CYCLE:
        return place % count
    if pick is Pick.UNIFORM:
        return rng.randrange(count)
    return rng.choices(range(count), cum_weights=_zipf(count))[0]


_ZIPF: dict[int, list[float]] = {}


def _zipf(count: int) -> list[float]:
    if count not in _ZIPF:
        _ZIPF[count] = list(accumulate(1 / rank for rank in range(1, count + 1)))
    return _ZIPF[count]


def _longest(stream: StreamConfig) -> int:
    documents = stream.documents
    retrieved = documents.each * documents.tokens[1] if documents is not None else 0
    turns = stream.turns * (max(1, stream.question_tokens[1]) + max(1, stream.answer_tokens[1]))
    return stream.shared_tokens[1] + stream.prefix_tokens[1] + retrieved + turns
