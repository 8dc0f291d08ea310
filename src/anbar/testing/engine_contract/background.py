"""Requests that run while a check does something else."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException

from anbar.testing.engine_contract.samples import totals
from anbar.testing.engine_contract.target import (
    Json,
    Reply,
    Target,
    complete,
    context_length,
    eventually,
    ok,
    sent,
)


class Asked:
    """A completion that is asked for in a thread of its own."""

    def __init__(self, target: Target, prompt: object, **fields: object) -> None:
        self._replies: list[Reply] = []
        self._errors: list[Exception] = []
        self._thread = threading.Thread(target=self._ask, args=(target, prompt, fields), daemon=True)
        self._thread.start()

    @property
    def is_answered(self) -> bool:
        return bool(self._replies)

    def answer(self) -> Json:
        """Wait for the answer, which must be a 200."""
        self._thread.join()
        assert self._replies, f"no answer came: {self._errors}"
        return ok(self._replies[0])

    def _ask(self, target: Target, prompt: object, fields: Json) -> None:
        try:
            self._replies.append(complete(target, prompt, **fields))
        except (OSError, HTTPException) as error:
            self._errors.append(error)


def begun(target: Target, prompt: object, **fields: object) -> Asked:
    """A completion whose first tokens have been counted, where nobody else asks: the gauges may still be an
    earlier step's. It wants all that the context has room for unless `fields` say less."""
    generated = totals(target)["generation_tokens_total"]
    asked = Asked(target, prompt, **{"max_tokens": endless(target, prompt), "ignore_eos": True, **fields})
    _wait_generated(target, generated)
    return asked


@contextmanager
def abandoned(target: Target, prompt: object, **fields: object) -> Iterator[HTTPConnection]:
    """A completion that wants all that the context has room for; its client is gone when the block ends."""
    body = {
        "model": target.model,
        "prompt": prompt,
        "max_tokens": endless(target, prompt),
        "ignore_eos": True,
        "temperature": 0,
        **fields,
    }
    with sent(target, "POST", "/v1/completions", body) as connection:
        yield connection


@contextmanager
def running(target: Target, prompt: object, **fields: object) -> Iterator[HTTPConnection]:
    """The same, once its first tokens have been counted. For an engine where nobody else asks."""
    generated = totals(target)["generation_tokens_total"]
    with abandoned(target, prompt, **fields) as connection:
        _wait_generated(target, generated)
        yield connection


def endless(target: Target, prompt: object) -> int:
    """As many tokens as the context has room for: no check waits for them."""
    num_tokens = len(prompt) if isinstance(prompt, list | str) else 0
    return context_length(target) - num_tokens - 1


def _wait_generated(target: Target, before: float) -> None:
    eventually(lambda: totals(target)["generation_tokens_total"] > before, target)
