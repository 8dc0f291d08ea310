"""Which LoRA adapters one engine has in its slots, as far as one can know."""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from anbar.adapters.vllm.probe import AdapterFacts

MAX_REMEMBERED = 64
"""Adapters whose use is remembered of an engine that does not tell how many slots it has."""


class AdapterUse:
    """Told by the engine's metrics, a second old, and by the requests that this router has there now.

    An adapter stays in its slot after its last request, until another one needs the slot; the one used
    longest ago goes first, in vLLM as here.
    """

    def __init__(self) -> None:
        self.told = AdapterFacts()
        self._in_flight: Counter[str] = Counter()
        self._used: OrderedDict[str, None] = OrderedDict()

    @contextmanager
    def using(self, adapter: str | None) -> Iterator[None]:
        """Around a request with `adapter`, or with none."""
        if adapter is None:
            yield
            return
        self._touch(adapter)
        self._in_flight[adapter] += 1
        try:
            yield
        finally:
            self._in_flight[adapter] -= 1
            if not self._in_flight[adapter]:
                del self._in_flight[adapter]
            self._touch(adapter)

    @property
    def running(self) -> frozenset[str]:
        """Adapters whose slots nobody else can have now."""
        return self.told.running.union(self._in_flight)

    @property
    def loaded(self) -> frozenset[str]:
        """Adapters that are believed to be in a slot."""
        running = self.running
        num_idle = (self.told.num_slots or MAX_REMEMBERED) - len(running)
        idle = [adapter for adapter in reversed(self._used) if adapter not in running]
        return running.union(idle[: max(0, num_idle)])

    @property
    def is_full(self) -> bool:
        """Whether running requests use every slot."""
        return 0 < self.told.num_slots <= len(self.running)

    def forget(self) -> None:
        """Another engine has taken the place of this one; requests in flight end by themselves."""
        self.told = AdapterFacts()
        self._used.clear()

    def _touch(self, adapter: str) -> None:
        self._used[adapter] = None
        self._used.move_to_end(adapter)
        while len(self._used) > MAX_REMEMBERED:
            self._used.popitem(last=False)
