"""A completion that is asked for while a check does something else."""

import threading

from anbar.testing.engine_contract.target import Json, Reply, Target, complete, ok


class Asked:
    """Asked for at once, in a thread of its own."""

    def __init__(self, target: Target, prompt: object, **fields: object) -> None:
        self._replies: list[Reply] = []
        self._thread = threading.Thread(
            target=lambda: self._replies.append(complete(target, prompt, **fields)), daemon=True
        )
        self._thread.start()

    @property
    def is_answered(self) -> bool:
        return bool(self._replies)

    def answer(self) -> Json:
        """Wait for the answer, which must be a 200."""
        self._thread.join()
        assert self._replies, "no answer came"
        return ok(self._replies[0])
