"""A completion that is asked for while a check does something else."""

import threading

from anbar.testing.engine_contract.counters import totals
from anbar.testing.engine_contract.target import Json, Reply, Target, complete, eventually, ok


class Asked:
    """Asked for at once, in a thread of its own."""

    def __init__(self, target: Target, prompt: object, **fields: object) -> None:
        self._target = target
        self._generated = totals(target)["generation_tokens_total"]
        self._replies: list[Reply] = []
        self._thread = threading.Thread(
            target=lambda: self._replies.append(complete(target, prompt, **fields)), daemon=True
        )
        self._thread.start()

    @property
    def is_answered(self) -> bool:
        return bool(self._replies)

    def wait_begun(self) -> None:
        """Until tokens of it have come, where nobody else asks: the gauges may still be an earlier step's."""
        eventually(lambda: totals(self._target)["generation_tokens_total"] > self._generated, self._target)

    def answer(self) -> Json:
        """Wait for the answer, which must be a 200."""
        self._thread.join()
        assert self._replies, "no answer came"
        return ok(self._replies[0])
