"""Chats as whole HTTP requests: the same ones again and again, or never the same."""

import itertools
import json
import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_DOCS = Path(__file__).parent.parent / "docs"
NUM_AGAIN = 16
NUM_TURNS = 3
"""Messages of a short chat; a long one has one for every 2 KB."""


@cache
def words() -> list[str]:
    """Words of real prose: those of this project's documentation."""
    text = " ".join(path.read_text() for path in sorted(_DOCS.rglob("*.md")))
    return sorted(set(re.findall(r"[A-Za-z]{2,12}", text)))


class Chats:
    """Requests to the model called `model`."""

    def __init__(self, model: str, seed: int = 0) -> None:
        self._model = model
        self._rng = random.Random(seed)
        self._known: dict[tuple[int, bool], list[bytes]] = {}

    def again(self, num_bytes: int, stream: bool) -> Iterator[bytes]:
        """The same few, in turn."""
        return itertools.cycle(self.known(num_bytes, stream))

    def known(self, num_bytes: int, stream: bool) -> list[bytes]:
        """Those few."""
        known = self._known.get((num_bytes, stream))
        if known is None:
            fresh = self.fresh(num_bytes, stream)
            known = self._known[num_bytes, stream] = list(itertools.islice(fresh, NUM_AGAIN))
        return known

    def fresh(self, num_bytes: int, stream: bool) -> Iterator[bytes]:
        """No two with a message in common."""
        while True:
            yield self._request(num_bytes, stream)

    def _request(self, num_bytes: int, stream: bool) -> bytes:
        num_messages = max(NUM_TURNS, num_bytes // 2048 | 1)
        each = num_bytes // num_messages
        roles = ["system", *itertools.islice(itertools.cycle(("user", "assistant")), num_messages - 1)]
        roles[-1] = "user"
        messages = [{"role": role, "content": self._text(each)} for role in roles]
        body: dict[str, object] = {
            "model": self._model,
            "messages": messages,
            "max_tokens": 64 if stream else 1,
        }
        if stream:
            body["stream"] = True
        data = json.dumps(body, separators=(",", ":")).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(data), data)

    def _text(self, num_bytes: int) -> str:
        chosen = self._rng.choices(words(), k=num_bytes // 6 + 2)
        return f"{self._rng.getrandbits(40):x} {' '.join(chosen)}"[:num_bytes]


def contents(request: bytes) -> str:
    """The text of a request's messages."""
    body = json.loads(request.partition(b"\r\n\r\n")[2])
    return "\n".join(message["content"] for message in body["messages"])
