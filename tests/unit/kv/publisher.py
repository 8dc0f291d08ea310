"""A small publisher that behaves as vLLM 0.32's `ZmqEventPublisher`, on real sockets, and can misbehave."""

import asyncio
from collections import deque
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

END_SEQ = (-1).to_bytes(8, "big", signed=True)


def payload(tag: int) -> bytes:
    """A batch that says one thing: the block called `tag` was removed."""
    event = {"type": "BlockRemoved", "block_hashes": [tag], "medium": "GPU", "group_idx": 0}
    return msgspec.msgpack.encode([float(tag), [event], 0])


class Publisher:
    """XPUB and ROUTER on ipc sockets in `folder`; each instance is one life, numbered from 0.

    `topic_frame`: replay framing of 0.32, else that of older releases. `answers`: False: a mute replay.
    `drops_once`: batches that the first replay leaves out; with the number after the last, its end as well.
    Replays wait while `gate` is not set.
    """

    def __init__(
        self,
        folder: Path,
        *,
        buffer_steps: int = 10_000,
        topic_frame: bool = True,
        answers: bool = True,
        drops_once: range = range(0),
    ) -> None:
        self.events = f"ipc://{folder}/events"
        self.replay = f"ipc://{folder}/replay"
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._topic_frame = topic_frame
        self._answers = answers
        self._drops = drops_once
        self._next = 0
        self.num_requests = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __aenter__(self) -> "Publisher":
        self._context = zmq.asyncio.Context()
        self._pub = self._context.socket(zmq.XPUB)
        self._pub.bind(self.events)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind(self.replay)
        self._task = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=0)

    async def subscribed(self) -> None:
        """Until a subscription has arrived, which is later than its connection: then nothing is lost."""
        assert await self._pub.recv() == b"\x01"

    async def publish(self, *tags: int) -> None:
        """Send a batch for each tag and keep it for replay."""
        for tag in tags:
            await self.publish_bytes(payload(tag))

    async def publish_bytes(self, data: bytes) -> None:
        await self._pub.send_multipart([b"", self._next.to_bytes(8, "big"), data])
        self.buffer_only(data)

    def buffer_only(self, data: bytes) -> None:
        """A batch that is lost on its way, as when a subscriber's queue is full."""
        self._buffer.append((self._next, data))
        self._next += 1

    async def send_frames(self, *frames: bytes) -> None:
        await self._pub.send_multipart(list(frames))

    async def _serve(self) -> None:
        while True:
            client, empty, first = await self._router.recv_multipart()
            self.num_requests += 1
            if not self._answers:
                continue
            await self.gate.wait()
            head = [client, empty, b""] if self._topic_frame else [client, empty]
            dropped, self._drops = self._drops, range(0)
            for seq, data in list(self._buffer):
                if seq >= int.from_bytes(first, "big") and seq not in dropped:
                    await self._router.send_multipart([*head, seq.to_bytes(8, "big"), data])
            if self._next not in dropped:
                await self._router.send_multipart([*head, END_SEQ, b""])
