"""How many damaged entries one engine keeps aside in a server that others share."""

import threading
from collections import deque
from collections.abc import Callable

from anbar.adapters.store.quarantine import MAX_AGE_S, MAX_BYTES, MAX_FILES


class Allowance:
    """`MAX_FILES` entries of `MAX_BYTES` together in `MAX_AGE_S`. Thread-safe. An entry counts when it is to
    be kept, whether or not that is done. `now_s`: seconds of a clock that never goes back."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._kept: deque[tuple[float, int]] = deque()

    def admit(self, num_bytes: int) -> bool:
        """Whether one more may be kept."""
        now_s = self._now_s()
        with self._lock:
            while self._kept and now_s - self._kept[0][0] >= MAX_AGE_S:
                self._kept.popleft()
            total_bytes = num_bytes + sum(size for _, size in self._kept)
            if len(self._kept) >= MAX_FILES or total_bytes > MAX_BYTES:
                return False
            self._kept.append((now_s, num_bytes))
            return True
