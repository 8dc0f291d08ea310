"""File operations with a deadline: they run on threads that may hang, while the caller goes on in time."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class _Task(Generic[T]):
    """One operation; `result` may be read once the task came back through its queue."""

    def __init__(self, index: int, work: Callable[[], T], done: "queue.SimpleQueue[_Task[T]]") -> None:
        self.index = index
        self.abandoned = False
        self.result: T
        self._work = work
        self._done = done

    def run(self) -> None:
        if not self.abandoned:
            self.result = self._work()
            self._done.put(self)


class DeadlineRunner:
    """Runs operations on its own daemon threads.

    A thread that hangs in the kernel is lost until its operation ends; when all hang, further operations
    are late without having begun. Operations must not raise: they return what happened.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._tasks: queue.SimpleQueue[_Task[object] | None] = queue.SimpleQueue()
        self._num_threads = num_threads
        self._name = name
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads; daemons, since a hung one must not keep the process from ending."""
        for index in range(self._num_threads):
            thread = threading.Thread(target=self._work, name=f"{self._name}-{index}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def run(self, works: Iterable[Callable[[], T]], deadline_s: float) -> Iterator[tuple[int, T]]:
        """`(index, result)` of each operation, in the order in which they end, until `deadline_s`
        (`time.monotonic`). What is not yielded was late: it may still run, or never begin.

        `works` is consumed by the caller's thread, a few ahead of the workers, so that making an operation
        may be what costs memory.
        """
        done: queue.SimpleQueue[_Task[T]] = queue.SimpleQueue()
        running: set[_Task[T]] = set()
        numbered = enumerate(works)
        try:
            while (left_s := deadline_s - time.monotonic()) > 0:
                while len(running) < 2 * self._num_threads and (item := next(numbered, None)) is not None:
                    task = _Task(*item, done)
                    running.add(task)
                    self._tasks.put(task)  # type: ignore[arg-type]  # one queue for results of any type
                if not running:
                    return
                try:
                    task = done.get(timeout=left_s)
                except queue.Empty:
                    return
                running.discard(task)
                yield task.index, task.result
        finally:
            for task in running:
                task.abandoned = True

    def close(self) -> None:
        """Let the threads end after what is queued; hung ones end with their operation."""
        for _ in range(self._num_threads):
            self._tasks.put(None)

    def join(self, timeout_s: float) -> None:
        """After `close`: wait until they have ended, those that do not hang."""
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task.run()
