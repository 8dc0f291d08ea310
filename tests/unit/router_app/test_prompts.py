"""From requests to token ids: where they are computed and how much of them, and that no answer of an engine
becomes an error."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import cast

import pytest
from scripted import InOrder, answer, ask, engine_at, path_to, post, scripted
from tests.unit.kv.families import WITH_WORDS, WITHOUT_WORDS
from transformers import PreTrainedTokenizerFast

from anbar.adapters.http.openai import ApiRequest, ClientKv, Endpoint, parse
from anbar.adapters.vllm.reading import Reading, read_already
from anbar.adapters.vllm.tokens import HfTokenizer, NotReproducible, Tokenizer, TokenizerOptions
from anbar.apps.router.engine import Engine
from anbar.apps.router.prompts import Prompts
from anbar.core.fleet import EngineView, PrefixMatch, Route
from anbar.core.ids import EngineId
from anbar.core.request import RouteQuery

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class Noting(Tokenizer):
    """Answers with one id, and notes on which thread."""

    def __init__(self) -> None:
        super().__init__(None, TokenizerOptions())  # type: ignore[arg-type] nothing is encoded
        self.threads: list[threading.Thread] = []

    def read_chat(self, body: Mapping[str, object]) -> Reading:
        self.threads.append(threading.current_thread())
        return read_already([1])

    read_completion = read_chat


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
    api = read(Endpoint.CHAT, {**CHAT, "prompt": prompt})
    tokens = await prompts.tokens(api, [engine_at(1, "a")], 100, whole=False)
    assert tokens.ids.tolist() == [1]
    assert threading.main_thread() not in noting.threads


async def test_ids_need_no_thread(executor: ThreadPoolExecutor) -> None:
    """A completion whose prompt is ids already is worth no thread."""
    noting = Noting()
    prompts = Prompts(executor)
    prompts.use("m", noting)
    api = read(Endpoint.COMPLETIONS, {"model": "m", "prompt": [1]})
    await prompts.tokens(api, [engine_at(1, "a")], 1 << 20, whole=True)
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
        tokens = await Prompts(executor).tokens(read(Endpoint.CHAT, CHAT), [engine], 100, whole=False)
        engine.pool.close()
    assert (tuple(tokens.ids), tokens.note) == (ids, note)


RAW = WITH_WORDS["qwen-2"]
SLOW = WITHOUT_WORDS["gemma"]
LONG = " ".join(f"word{number}" for number in range(4000))


class Watched(Tokenizer):
    """A real tokenizer that notes on which thread prompts are begun."""

    def __init__(self, raw: object, max_model_len: int | None = None) -> None:
        hf = PreTrainedTokenizerFast(tokenizer_object=raw)
        super().__init__(cast("HfTokenizer", hf), TokenizerOptions(max_model_len=max_model_len))
        self.threads: list[bool] = []

    def read_completion(self, body: Mapping[str, object]) -> Reading | NotReproducible:
        self.threads.append(threading.current_thread() is threading.main_thread())
        return super().read_completion(body)


def roomy() -> Engine:
    """An engine with a context that nothing here fills."""
    engine = engine_at(1, "a")
    engine.facts = replace(engine.facts, max_model_len=1 << 20)
    return engine


@pytest.mark.parametrize(
    ("raw", "num_bytes", "whole", "inline"),
    [
        (RAW, 400, False, True),
        (RAW, 65_536, False, True),
        (RAW, 65_537, False, False),
        (RAW, 4096, True, True),
        (RAW, 4097, True, False),
        (SLOW, 400, False, False),
    ],
)
async def test_where_a_prompt_is_begun(
    executor: ThreadPoolExecutor, raw: object, num_bytes: int, whole: bool, inline: bool
) -> None:
    """What takes less than a thread costs is done at once; not so where the first ids come with the last."""
    watched = Watched(raw)
    prompts = Prompts(executor)
    prompts.use("m", watched)
    api = read(Endpoint.COMPLETIONS, {"model": "m", "prompt": LONG})
    tokens = await prompts.tokens(api, [roomy()], num_bytes, whole=whole)
    assert watched.threads == [inline]
    assert tokens.is_whole == (whole or raw is SLOW)


async def test_a_prompt_is_read_in_few_steps(executor: ThreadPoolExecutor) -> None:
    """First some hundred tokens; then steps that grow, until all is read: the ids of the whole text."""
    prompts = Prompts(executor)
    prompts.use("m", Watched(RAW))
    api = read(Endpoint.COMPLETIONS, {"model": "m", "prompt": LONG})
    tokens = await prompts.tokens(api, [roomy()], len(LONG), whole=False)
    expected = RAW.encode(LONG).ids
    assert 100 < len(tokens.ids) < len(expected) / 10
    assert len(expected) / 2 < tokens.reading.num_tokens < 2 * len(expected)
    num_steps = 0
    while not tokens.is_whole:
        tokens = await prompts.more(tokens)
        num_steps += 1
    assert tokens.ids.tolist() == expected
    assert tokens.reading.num_tokens == len(expected)
    assert num_steps == 2


class Keeping(InOrder):
    """Keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.query: RouteQuery | None = None
        self.matches: Mapping[EngineId, PrefixMatch] = {}

    def decide(
        self, query: RouteQuery, engines: Sequence[EngineView], matches: Mapping[EngineId, PrefixMatch]
    ) -> Route:
        self.query, self.matches = query, matches
        return super().decide(query, engines, matches)


@pytest.mark.parametrize("has_cache", [True, False])
async def test_prompts_for_engines_that_tell_nothing_are_compared_in_full(has_cache: bool) -> None:
    """An engine tells neither of its cache nor what is in it. The first prompt is read to its end, so that of
    the second one all that was sent there is known. Where there is no cache, little is read."""
    policy, engine = Keeping(), roomy()
    request = post(json.dumps({"model": "m", "prompt": LONG}).encode())
    num_tokens = len(RAW.encode(LONG).ids)
    async with scripted(answer(b"{}")) as end:
        engine.pool = engine_at(end.port, "a").pool
        async with path_to([engine]) as path:
            path.flow.parts = parts = replace(path.flow.parts, policy=policy)
            parts.prompts.use("m", Watched(RAW))
            if has_cache:
                parts.caches.placements.attach(engine.id, "m", 0)
            for _ in range(2):
                await ask(path.port, request)
    assert policy.query is not None
    assert policy.query.is_whole is has_cache
    matched = policy.matches.get(engine.id, PrefixMatch())
    assert matched.total == ((num_tokens - 1) // 16 * 16 if has_cache else 0)


async def test_a_prompt_that_may_be_too_long_is_read_to_its_end(executor: ThreadPoolExecutor) -> None:
    """Only its true length can refuse it."""
    num_tokens = len(RAW.encode(LONG).ids)
    engine = engine_at(1, "a")
    for max_model_len, is_whole in ((num_tokens, True), (2 * num_tokens, False)):
        engine.facts = replace(engine.facts, max_model_len=max_model_len)
        prompts = Prompts(executor)
        prompts.use("m", Watched(RAW))
        api = read(Endpoint.COMPLETIONS, {"model": "m", "prompt": LONG})
        tokens = await prompts.tokens(api, [engine], len(LONG), whole=False)
        assert tokens.is_whole == is_whole


async def test_a_long_text_without_spaces_is_encoded_on_a_thread() -> None:
    """It is one piece, which takes many milliseconds; a text of words as long is begun at once."""
    started: list[object] = []
    with ThreadPoolExecutor(1, initializer=lambda: started.append("a thread")) as executor:
        prompts = Prompts(executor)
        prompts.use("m", Watched(RAW))
        for text, threads in ((LONG[:8000], []), ("x" * 8000, ["a thread"])):
            api = read(Endpoint.COMPLETIONS, {"model": "m", "prompt": text})
            tokens = await prompts.tokens(api, [roomy()], len(text), whole=False)
            assert tokens.ids
            assert started == threads


async def test_the_shortest_context_counts(executor: ThreadPoolExecutor) -> None:
    """One engine's context would not hold the prompt: it is read whole, so that its length is known and that
    engine gets nothing of it, though another one has room for all."""
    prompts = Prompts(executor)
    prompts.use("m", Watched(RAW))
    api = read(Endpoint.COMPLETIONS, {"model": "m", "prompt": LONG})
    assert not (await prompts.tokens(api, [roomy()], 400, whole=False)).is_whole
    assert (await prompts.tokens(api, [roomy(), engine_at(1, "b")], 400, whole=False)).is_whole


async def test_no_prompt_beside_embeddings(executor: ThreadPoolExecutor) -> None:
    """A completion of embeddings, with an empty list as its prompt: no error, whatever its size."""
    prompts = Prompts(executor)
    prompts.use("m", Watched(SLOW))
    api = read(Endpoint.COMPLETIONS, {"model": "m", "prompt": [], "prompt_embeds": "QQ=="})
    tokens = await prompts.tokens(api, [roomy()], 1 << 20, whole=False)
    assert not tokens.ids
