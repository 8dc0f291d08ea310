"""The subscriber to one engine's KV events: a complete and ordered stream, or a report of what is missing.

How a stream is made whole
--------------------------
vLLM's publisher numbers its batches from 0 in each life and offers the last 10,000 of them for replay. It
sends a batch before it puts it into the replay buffer, so a replay asked for after a live batch `n` holds
`n - 1`.

- *Start.* Subscribe, wait for the handshake, then replay from 0. Live batches queue in the socket
  meanwhile and are taken afterwards; those that the replay had are recognised by number and bytes and
  dropped.
- *Gap.* A live number beyond the expected one: replay from the last batch we have.
- *Restart.* Three signs, each enough: (1) a number comes again with other bytes; (2) after each new
  handshake, and whenever a gap is replayed, the replay begins with our own last batch, and its bytes
  differ; (3) that replay does not have our last batch, while an engine that still lives has it, unless it
  has published more than a buffer since. So an engine that restarted while we were away is recognised
  even if it has published more than we had seen, and one that ran too far ahead is treated alike. Then:
  `on_restart`, replay from 0.
- *Interrupted replay.* vLLM's replay socket drops what a slow reader has no room for, the end mark
  included. A hole in a replay, or silence, makes us ask again from the last batch we have, for as long as
  that gets on.
- *Loss.* What a replay from 0 no longer holds is reported by `on_gap`, and the stream goes on behind it. From
  then on the stream is *partial*: what it says is true, but blocks that were announced before are unknown.
  That ends with the engine's next life, which is followed from its first batch, or when the sink says by
  `proven` that nothing from before is left.
- *Overload.* What was received and not yet read is bounded in bytes. Once that is full, what comes is
  dropped until all before it was read; then one replay fetches what was dropped.
- *Position.* A sink that was told by another one what happened up to a batch `n` lets the stream begin
  there: the replay begins with `n`, and must have the same bytes, else the engine has begun a new life.
- Without a replay address nothing can be compared: every new handshake counts as a restart.

A sink never sees a batch twice, nor two batches out of order, between two calls of `on_restart`.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from anbar.adapters.vllm.kv_backlog import Backlog
from anbar.adapters.vllm.kv_sequence import SequenceLog, StreamPosition, Verdict
from anbar.adapters.vllm.kv_wire import (
    END_SEQ,
    Message,
    decode_message,
    live_message,
    replay_message,
    replay_request,
)
from anbar.core.errors import WireError
from anbar.core.events import KvBatch
from anbar.core.ids import EngineId


class KvSink(Protocol):
    """Who is told. Called on the event loop, in order; must return at once and not raise."""

    def on_batch(self, engine: EngineId, batch: KvBatch) -> None:
        """The next batch of the engine's present life."""
        ...

    def on_restart(self, engine: EngineId) -> None:
        """What was said before is void: the engine has begun anew, or may have."""
        ...

    def on_gap(self, engine: EngineId, first: int, last: int) -> None:
        """Batches `first`..`last` are lost for good. Removals may be among them, so a sink must forget what
        it believes of the engine's own tiers; what follows is true, but not the whole truth."""
        ...

    def on_error(self, engine: EngineId, error: Exception) -> None:
        """A session ended with an error nobody expected, a defect; a new one begins after a pause."""
        ...


@dataclass(frozen=True, slots=True)
class SubscriberTiming:
    """Seconds, unless it says otherwise; the defaults fit engines on one network."""

    poll_s: float = 0.25
    """How soon a new connection, or a call of `resync`, is noticed while nothing is published."""
    replay_timeout_s: float = 5.0
    """Longest wait for a replay to begin. vLLM's publisher looks for requests at least every 0.1 s."""
    replay_silence_s: float = 0.5
    """Longest silence within a replay, which vLLM sends in one go; beyond, its end was dropped."""
    backoff_s: float = 0.2
    """Pause after the first failure; doubles with each."""
    max_backoff_s: float = 5.0
    reconnect_s: float = 0.5
    """Longest pause between two tries to connect. An engine that comes back is followed this much later at
    most, and a connection that nobody accepts costs next to nothing."""
    backlog_bytes: int = 32 * 2**20
    """What may wait to be taken in, beside what waits in the socket."""


@dataclass(slots=True)
class KvStreamStatus:
    """The state of one stream and counts since the start."""

    connected: bool = False
    complete: bool = False
    """The sink knows all that the engine has announced in this life."""
    partial: bool = False
    """Batches of this life are lost, and nothing has made up for them: what the sink knows is true, but
    blocks announced before the loss are unknown to it. Ends with the next life, or by
    `KvSubscriber.proven`."""
    replaying: bool = False
    """What the sink is told now comes from a replay: it may be long past."""
    num_waiting: int = 0
    """Batches that have come and are not yet taken in, dropped ones included."""
    num_batches: int = 0
    num_dropped: int = 0
    """Batches for which there was no room; a replay fetches them."""
    num_duplicates: int = 0
    num_stale: int = 0
    """Batches that were of no more use when they were taken from the queue."""
    num_restarts: int = 0
    num_gaps: int = 0
    num_lost: int = 0
    """Batches lost for good, malformed ones included."""
    num_malformed: int = 0
    num_replays: int = 0
    num_failed_replays: int = 0
    num_errors: int = 0
    """Sessions that ended with an error of ours."""


class _Restarted(Exception):
    """The replay does not continue what we have."""


class _ReplayFailed(Exception):
    """The replay address did not answer, not with a replay, or not with all of it."""


REPLAY_TRIES = 3
"""Attempts at a replay that get no further, before the stream goes on without it."""

QUEUE_BATCHES = 1_000
"""Batches that wait in a socket. The live one's is emptied at every turn; beyond, the publisher drops, which
is then a gap like any other. A replay goes on with what was dropped. A batch of a step that computes 8,192
tokens is some 30 KB, so that 10,000 of them, vLLM's whole buffer, would be 300 MB for each engine."""

BACKLOG_BATCHES = 4_000
"""What may wait to be taken in. With what waits in the socket and what a replay repeats it is less than
`SequenceLog.WINDOW`."""

RECEIVE_BATCHES = 256
"""Messages taken from the socket at a time: some 3 ms if they are large."""

TURN_BYTES = 64 * 2**10
"""Live messages that are taken in before others have their turn: some 2 ms."""


class KvSubscriber:
    """See the module's text. `start` and `stop` (or `async with`) run it in a task; `run` in the caller's.

    `events` and `replay` are ZMQ addresses to connect to. Neither needs to exist yet.
    """

    def __init__(
        self,
        engine: EngineId,
        events: str,
        replay: str | None,
        sink: KvSink,
        *,
        timing: SubscriberTiming | None = None,
        begin: StreamPosition | None = None,
    ) -> None:
        self._engine = engine
        self._events = events
        self._replay = replay
        self._sink = sink
        self._timing = timing if timing is not None else SubscriberTiming()
        self._log = SequenceLog()
        self._backlog = self._empty_backlog()
        self._num_fetched = 0
        """Dropped messages that a replay is fetching."""
        self._socket: zmq.Socket[bytes] | None = None
        """The live one, read without waiting."""
        self._proven = False
        self._resync = False
        self._task: asyncio.Task[None] | None = None
        self.status = KvStreamStatus()
        if begin is not None and replay is not None:
            self._log.resume(begin.seq, begin.fingerprint)
            self.status.partial = begin.partial

    def _empty_backlog(self) -> Backlog:
        return Backlog(BACKLOG_BATCHES, self._timing.backlog_bytes)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def start(self) -> None:
        """Begin in a task of the running loop; a second call does nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self.run(), name=f"kv-events-{self._engine}")

    async def stop(self) -> None:
        """End the task and close its sockets; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))  # not `await task`: its cancellation would be taken for the caller's

    def position(self) -> StreamPosition | None:
        """How far the sink was told; None before the first batch."""
        last = self._log.last()
        return StreamPosition(*last, self.status.partial) if last is not None else None

    def resync(self) -> None:
        """Look now, not after a pause, whether the engine is there and in which life: it may have
        restarted."""
        self._resync = True
        if self._replay is not None:
            self.status.complete = False

    def proven(self) -> None:
        """Called from `on_batch`: with this batch the sink knows all that there is, whatever was lost
        before."""
        self._proven = True
        self.status.partial = False

    async def run(self) -> None:
        """Follow the stream until cancelled; a session that fails is followed by a new one."""
        pause_s = self._timing.backoff_s
        while True:
            before = self.status.num_batches
            try:
                await self._session()
            except Exception as error:  # noqa: BLE001 the supervisor of the stream
                self.status.num_errors += 1
                self._sink.on_error(self._engine, error)
            self._begin_anew()
            if self.status.num_batches > before:
                pause_s = self._timing.backoff_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._timing.max_backoff_s)

    async def _session(self) -> None:
        """Sockets for as long as all goes well. Reconnecting is ZMQ's own, with backoff."""
        context = zmq.asyncio.Context()
        try:
            subscriber = context.socket(zmq.SUB)
            subscriber.set_hwm(QUEUE_BATCHES)
            subscriber.setsockopt(zmq.IPV6, 1)  # it speaks IPv4 too
            subscriber.setsockopt(zmq.RECONNECT_IVL, round(1000 * self._timing.backoff_s))
            subscriber.setsockopt(zmq.RECONNECT_IVL_MAX, round(1000 * self._timing.reconnect_s))
            subscriber.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
            subscriber.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15_000)
            subscriber.subscribe(b"")
            monitor_address = f"inproc://monitor-{self._engine}"
            subscriber.monitor(monitor_address, zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            plain: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(context.underlying)
            monitor = plain.socket(zmq.PAIR)
            monitor.connect(monitor_address)
            self._socket = zmq.Socket.shadow(subscriber.underlying)
            try:
                subscriber.connect(self._events)
                await self._follow(context, subscriber, monitor)
            finally:
                self._socket = None
                self._backlog = self._empty_backlog()
                self._num_fetched = self.status.num_waiting = 0
                subscriber.disable_monitor()
                monitor.close(linger=0)
                subscriber.close(linger=0)
        finally:
            self.status.connected = self.status.complete = False
            context.destroy(linger=0)

    async def _follow(
        self, context: zmq.asyncio.Context, subscriber: zmq.asyncio.Socket, monitor: "zmq.Socket[bytes]"
    ) -> None:
        while True:
            if not self._backlog:
                await subscriber.poll(round(1000 * self._timing.poll_s))
            self._receive()
            # Looked at after receiving: the handshake is announced before its first message is delivered.
            handshake = self._handshake_since(monitor)
            if self._resync and not self.status.connected:
                subscriber.disconnect(self._events)  # what it waits for is its next try, which may be far
                subscriber.connect(self._events)
            if handshake or (self._resync and self.status.connected and self._replay is not None):
                await self._resume(context)
            self._resync = False
            await self._turn(context)
            await asyncio.sleep(0)  # a queue of messages is received without ever yielding

    def _receive(self) -> None:
        """Take all live messages that have come from the socket, where they are not counted in bytes."""
        assert self._socket is not None
        for _ in range(RECEIVE_BATCHES):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if not self._backlog.put(frames):
                self.status.num_dropped += 1
                self.status.complete = False
        self._count_waiting()

    def _count_waiting(self) -> None:
        self.status.num_waiting = len(self._backlog) + self._backlog.num_missing + self._num_fetched

    async def _turn(self, context: zmq.asyncio.Context) -> None:
        """Read some of the messages that wait; after the last one before a hole, fetch what was dropped."""
        left = TURN_BYTES
        while self._backlog and left > 0:
            frames, size = self._backlog.take()
            left -= size
            await self._live(context, frames)
        if self._backlog.num_missing and not self._backlog:
            self._num_fetched = self._backlog.mended()
            await self._catch_up(context)  # if that fails, the next number shows the gap
            self._num_fetched = 0
        self._count_waiting()

    def _handshake_since(self, monitor: "zmq.Socket[bytes]") -> bool:
        """Whether a connection was made since the last call."""
        made = False
        while monitor.poll(0):
            event = parse_monitor_message(monitor.recv_multipart())["event"]
            self.status.connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            made = made or self.status.connected
            if not self.status.connected:
                self.status.complete = False
        return made

    async def _resume(self, context: zmq.asyncio.Context) -> None:
        """After a handshake: find out whether this is the life we know, and fetch what we have missed."""
        if not await self._catch_up(context) and self._log.next:
            self._begin_anew()

    async def _live(self, context: zmq.asyncio.Context, frames: list[bytes]) -> None:
        try:
            message = live_message(frames)
        except WireError:
            self.status.num_malformed += 1  # without a number: if it was a batch, a gap will show
            return
        verdict = self._log.judge(message)
        if verdict is Verdict.RESTART:
            self._begin_anew()
        replayed = verdict in (Verdict.RESTART, Verdict.GAP) and await self._catch_up(context)
        if replayed:
            verdict = self._log.judge(message)
        if verdict is Verdict.DUPLICATE:
            self.status.num_duplicates += 1
        elif verdict is Verdict.STALE or (replayed and verdict is not Verdict.NEXT):
            # A replay that was asked for now holds all up to this message, or only what came after it; so the
            # message waited in our queue, and is of a life that is over or of a past that is lost.
            self.status.num_stale += 1
        else:
            self._deliver(message)
            if self._proven:
                self.status.complete = self.status.connected and not self.status.partial

    def _deliver(self, message: Message) -> None:
        """Hand on the newest message, and first what is missing before it."""
        if message.seq > self._log.next:
            self._lose(self._log.next, message.seq - 1)
        self._log.accept(message)
        try:
            batch = decode_message(message)
        except WireError:
            self.status.num_malformed += 1
            self._lose(message.seq, message.seq)
            return
        self.status.num_batches += 1
        self._proven = False
        self._sink.on_batch(self._engine, batch)

    def _lose(self, first: int, last: int) -> None:
        self.status.num_gaps += 1
        self.status.num_lost += last - first + 1
        self.status.partial = True
        self.status.complete = self._proven = False
        self._sink.on_gap(self._engine, first, last)

    def _begin_anew(self) -> None:
        """Forget the life known so far, if there was one."""
        self.status.complete = self.status.partial = self._proven = False
        if self._log.next:
            self.status.num_restarts += 1
            self._log.reset()
            self._sink.on_restart(self._engine)

    async def _catch_up(self, context: zmq.asyncio.Context) -> bool:
        """Replay what is missing; False if the replay could not be had, and nothing was verified."""
        if self._replay is None:
            return False
        num_failures = 0
        while num_failures < REPLAY_TRIES:
            before = self._log.next
            self.status.num_replays += 1
            try:
                await self._replay_all(context)
            except _Restarted:
                self._begin_anew()
                num_failures += 1
            except _ReplayFailed:
                self.status.num_failed_replays += 1
                if self._log.next > before:
                    continue
                num_failures += 1
                pause_s = self._timing.backoff_s * 2**num_failures
                await asyncio.sleep(min(pause_s, self._timing.max_backoff_s))
            else:
                return True
        return False

    async def _replay_all(self, context: zmq.asyncio.Context) -> None:
        """Deliver what the replay has beyond our last batch; raises _Restarted, _ReplayFailed."""
        known = self._log.next
        self.status.replaying = True
        try:
            await self._replay_past(context, known)
        finally:
            self.status.replaying = False
        self.status.complete = not self.status.partial

    async def _replay_past(self, context: zmq.asyncio.Context, known: int) -> None:
        verified = known == 0
        begun = False
        async with aclosing(self._replayed(context, max(known - 1, 0))) as messages:
            async for message in messages:
                verdict = self._log.judge(message)
                verified = verified or (message.seq == known - 1 and verdict is Verdict.DUPLICATE)
                if not verified or verdict is Verdict.RESTART:
                    raise _Restarted
                if verdict is Verdict.GAP and begun:
                    raise _ReplayFailed  # the publisher's socket was full, and dropped some
                if verdict in (Verdict.NEXT, Verdict.GAP):
                    self._deliver(message)
                begun = True
                self._receive()
                await asyncio.sleep(0)
        if not verified:
            raise _Restarted

    async def _replayed(self, context: zmq.asyncio.Context, first: int) -> AsyncGenerator[Message, None]:
        """The messages of one replay, on a socket of its own, so that no late answer is taken for
        another's."""
        assert self._replay is not None
        dealer = context.socket(zmq.DEALER)
        dealer.set_hwm(QUEUE_BATCHES)
        dealer.setsockopt(zmq.IPV6, 1)
        silence_s = self._timing.replay_timeout_s
        try:
            dealer.connect(self._replay)
            await dealer.send_multipart(replay_request(first))
            while True:
                async with asyncio.timeout(silence_s):
                    frames = await dealer.recv_multipart()
                silence_s = self._timing.replay_silence_s
                message = replay_message(frames)
                if message.seq == END_SEQ:
                    return
                yield message
        except (TimeoutError, WireError) as error:
            raise _ReplayFailed from error
        finally:
            dealer.close(linger=0)
