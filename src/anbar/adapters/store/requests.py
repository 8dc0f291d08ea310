"""Requests with a deadline: tasks of an event loop on a thread of its own, which end with the deadline.

The counterpart of `deadline` for what can be cancelled: a request that is late is dropped with its
connection, and holds up nothing.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]


class RequestLoop:
    """Runs coroutines on behalf of threads. They must not raise: they return what happened. Thread-safe."""

    def __init__(self, max_running: int, name: str) -> None:
        self._max_running = max_running
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; until then, and after `close`, nothing runs."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_serve, args=(self._loop,), name=self._name, daemon=True)
        self._thread.start()

    def run(self, works: Iterable[Work[T]], deadline_s: float) -> Iterator[tuple[int, T]]:
        """`(index, result)` of each work, in the order in which they end, until `deadline_s`
        (`time.monotonic`). What is not yielded was late: it is cancelled, or never begun.

        `works` is consumed by the caller's thread, no more than `max_running` ahead, so that making a work
        may be what costs memory.
        """
        done: queue.SimpleQueue[tuple[int, Future[T]]] = queue.SimpleQueue()
        running: dict[int, Future[T]] = {}
        numbered = enumerate(works)
        try:
            while (left_s := deadline_s - time.monotonic()) > 0:
                while len(running) < self._max_running and (item := next(numbered, None)) is not None:
                    index, work = item
                    if (future := self._begin(work)) is None:
                        return
                    running[index] = future
                    future.add_done_callback(lambda ended, index=index: done.put((index, ended)))  # type: ignore[misc]
                if not running:
                    return
                try:
                    index, ended = done.get(timeout=left_s)
                except queue.Empty:
                    return
                del running[index]
                if not ended.cancelled():
                    yield index, ended.result()
        finally:
            for future in running.values():
                future.cancel()

    def begin(self, work: Work[None]) -> None:
        """Run something in the background until it ends or the loop is closed."""
        self._begin(work)

    def close(self) -> None:
        """Cancel what runs and end the thread; idempotent."""
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        if self._thread is not None:
            self._thread.join()

    def _begin(self, work: Work[T]) -> Future[T] | None:
        with self._lock:
            return None if self._loop is None else asyncio.run_coroutine_threadsafe(work(), self._loop)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    if tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
