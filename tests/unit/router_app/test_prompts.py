"""From requests to token ids: where they are computed, and that no answer of an engine becomes an error."""

import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from scripted import answer, engine_at, scripted

from anbar.adapters.http.openai import ApiRequest, ClientKv, Endpoint, parse
from anbar.adapters.vllm.tokens import Tokenizer, TokenizerOptions
from anbar.apps.router.prompts import Prompts

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class Noting(Tokenizer):
    """Answers with one id, and notes on which thread."""

    def __init__(self) -> None:
        super().__init__(None, TokenizerOptions())  # type: ignore[arg-type] nothing is encoded
        self.threads: list[threading.Thread] = []

    def chat(self, body: Mapping[str, object]) -> list[int]:
        self.threads.append(threading.current_thread())
        return [1]

    completion = chat


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def read(endpoint: Endpoint, body: Mapping[str, object]) -> ApiRequest:
    return parse(endpoint, json.dumps(body).encode(), ClientKv.REFUSE)


@pytest.mark.parametrize("prompt", [[], [1], {}, "x"])
async def test_prompt_of_a_chat_is_ignored(executor: ThreadPoolExecutor, prompt: object) -> None:
    """A chat that carries a stray `prompt`: still computed on a tokenizer thread, whatever that is."""
    noting = Noting()
    prompts = Prompts(executor)
    prompts.use("m", noting)
    tokens = await prompts.tokens(read(Endpoint.CHAT, {**CHAT, "prompt": prompt}), [engine_at(1, "a")])
    assert tokens.ids == (1,)
    assert threading.main_thread() not in noting.threads


async def test_ids_need_no_thread(executor: ThreadPoolExecutor) -> None:
    """A completion whose prompt is ids already is worth no thread."""
    noting = Noting()
    prompts = Prompts(executor)
    prompts.use("m", noting)
    await prompts.tokens(read(Endpoint.COMPLETIONS, {"model": "m", "prompt": [1]}), [engine_at(1, "a")])
    assert noting.threads == [threading.main_thread()]


@pytest.mark.parametrize(
    ("said", "ids", "note"),
    [
        (b'{"tokens":[5,6]}', (5, 6), ""),
        (b'{"detail":"no"}', (), "tokenize_failed"),
        (b'{"tokens":[-1]}', (), "tokenize_failed"),
        (b"<html>", (), "tokenize_failed"),
    ],
)
async def test_engine_that_tokenizes(
    executor: ThreadPoolExecutor, said: bytes, ids: tuple[int, ...], note: str
) -> None:
    """No tokenizer here: the engine's is asked; an answer that is none is no reason to fail the request."""
    async with scripted(answer(said)) as end:
        engine = engine_at(end.port, "a")
        tokens = await Prompts(executor).tokens(read(Endpoint.CHAT, CHAT), [engine])
        engine.pool.close()
    assert (tokens.ids, tokens.note) == (ids, note)
