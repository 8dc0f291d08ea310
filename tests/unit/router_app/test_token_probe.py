"""The router's tokens against an engine's, when an engine is taken in."""

import json
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from scripted import Connection, Script, ScriptedEngine, answer, engine_at, hang, scripted
from tests.waiting import until, within

from anbar.adapters.vllm.chat_messages import Reason
from anbar.adapters.vllm.tokens import NotReproducible, Tokenizer, TokenizerOptions
from anbar.apps.router.engine import TokenCheck
from anbar.apps.router.prompts import Prompts
from anbar.apps.router.token_probe import TokenProbe
from anbar.core.outcome import Event, TokensCompared


def ids(body: Mapping[str, object]) -> list[int]:
    """Tokens that a body's texts, and nothing else of it, decide."""
    return list(json.dumps([body.get("messages"), body.get("tools"), body.get("prompt")]).encode())


class Bytes(Tokenizer):
    """Tokens are bytes. `odd` is a text that it gets wrong, `no_tools` cannot render tools."""

    def __init__(self, odd: str = "", *, no_tools: bool = False) -> None:
        super().__init__(None, TokenizerOptions())  # type: ignore[arg-type] nothing is encoded
        self._odd = odd
        self._no_tools = no_tools

    def chat(self, body: Mapping[str, object]) -> list[int] | NotReproducible:
        if self._no_tools and "tools" in body:
            return NotReproducible(Reason.TEMPLATE_FAILED, "")
        own = ids(body)
        if self._odd and json.dumps(self._odd)[1:-1] in bytes(own).decode():
            own[len(own) // 2] = 7
        return own

    completion = chat


async def tokenize(connection: Connection) -> None:
    """An engine's /tokenize with those tokens."""
    assert b"POST /tokenize " in connection.head
    found = ids(json.loads(connection.body))
    await answer(json.dumps({"tokens": found, "count": len(found), "max_model_len": 9}).encode())(connection)


@dataclass
class Probed:
    """A probe, and what came of it."""

    prompts: Prompts
    probe: TokenProbe
    events: list[Event] = field(default_factory=list)

    @property
    def uses_own(self) -> bool:
        return "m" in self.prompts._tokenizers

    def compared(self) -> list[tuple[str, str]]:
        return [(event.result, event.detail) for event in self.events if isinstance(event, TokensCompared)]


@asynccontextmanager
async def probed(patience_s: float = 60.0) -> AsyncIterator[Probed]:
    with ThreadPoolExecutor(1) as executor:
        prompts, events = Prompts(executor), list[Event]()
        probe = TokenProbe(prompts, executor, events.append, patience_s)
        try:
            yield Probed(prompts, probe, events)
        finally:
            await probe.stop()


async def test_equal_tokens() -> None:
    """Every text is compared, and the router's own tokenizer is used."""
    async with scripted(tokenize) as server, probed() as it:
        engine = engine_at(server.port, "a")
        await within(it.probe.adopt(engine, Bytes(), "/models/m"))
        assert it.uses_own
        assert (engine.tokens, engine.tokenizer_note) == (TokenCheck.AGREES, "/models/m")
        assert it.compared() == [("agrees", "")]
        asked = b"".join(server.bodies).decode()
        for part in ('"role":"system"', '"tools"', "انبار", "अंबार", "🌾", '"prompt"'):
            assert part in asked
        engine.pool.close()


@pytest.mark.parametrize(
    ("odd", "name"),
    [
        ("How much", "chat"),
        ("You keep", "system"),
        ("stock", "tools"),
        ("چقدر", "persian"),
        ("अंबार में", "hindi"),
        ("🛖", "emoji"),
    ],
)
async def test_a_difference_is_named(odd: str, name: str) -> None:
    """The first text that differs is told, and where, and the engine is asked from then on."""
    async with scripted(tokenize) as server, probed() as it:
        engine = engine_at(server.port, "a")
        await within(it.probe.adopt(engine, Bytes(odd), "/models/m"))
        assert not it.uses_own
        ((result, detail),) = it.compared()
        assert result == "differs"
        assert f"{name!r} at token " in detail
        assert engine.tokens is TokenCheck.DIFFERS
        assert detail in engine.tokenizer_note
        assert "/models/m" in engine.tokenizer_note
        engine.pool.close()


async def test_one_engine_that_differs_is_enough() -> None:
    """Two engines serve the model. While one of them differs all are asked; when it agrees, or is gone, the
    router's own tokens are used again."""
    async with scripted(tokenize) as server, probed() as it:
        first, second = engine_at(server.port, "a"), engine_at(server.port, "b")
        await within(it.probe.adopt(first, Bytes("How"), "/models/m"))
        await within(it.probe.adopt(second, Bytes(), "/models/m"))
        assert not it.uses_own
        assert second.tokens is TokenCheck.AGREES
        await within(it.probe.adopt(first, Bytes(), "/models/m"))
        assert it.uses_own
        await within(it.probe.adopt(first, Bytes("How"), "/models/m"))
        assert not it.uses_own
        it.probe.leave(first)
        assert it.uses_own
        for engine in (first, second):
            engine.pool.close()


async def test_a_tokenizer_is_used_while_an_engine_has_it() -> None:
    """Two engines serve the model with a tokenizer each, the second one serves another model later: what is
    used is a tokenizer of those that serve it, and none when the last one is gone or asks for none."""
    async with scripted(tokenize) as server, probed() as it:
        first, second = engine_at(server.port, "a"), engine_at(server.port, "b")
        ours, theirs = Bytes(), Bytes()
        await within(it.probe.adopt(first, ours, "/models/m"))
        await within(it.probe.adopt(second, theirs, "/models/m"))
        assert it.prompts._tokenizers == {"m": theirs}
        second.facts = replace(second.facts, names=frozenset({"n"}))
        await within(it.probe.adopt(second, theirs, "/models/n"))
        assert it.prompts._tokenizers == {"m": ours, "n": theirs}
        it.probe.leave(first)
        assert it.prompts._tokenizers == {"n": theirs}
        it.probe.leave(second)
        assert it.prompts._tokenizers == {}
        for engine in (first, second):
            engine.pool.close()


@pytest.mark.parametrize(
    "script", [answer(b"{}", b"404 Not Found"), answer(b"[]"), answer(b"{}", b"500 Internal Server Error")]
)
async def test_an_engine_that_cannot_be_asked(script: Script) -> None:
    """The router's own tokens are used, and it says that nothing was compared."""
    async with scripted(script) as server, probed() as it:
        engine = engine_at(server.port, "a")
        await within(it.probe.adopt(engine, Bytes(), "/models/m"))
        assert it.uses_own
        assert engine.tokens is TokenCheck.UNVERIFIED
        assert engine.tokenizer_note.startswith("/models/m, not compared: ")
        engine.pool.close()


async def test_texts_that_one_side_refuses() -> None:
    """A template without a system role or tools: those texts are not compared, the others are."""

    async def picky(connection: Connection) -> None:
        body = json.loads(connection.body)
        refused = any(message["role"] == "system" for message in body.get("messages", ()))
        await (answer(b"{}", b"400 Bad Request") if refused else tokenize)(connection)

    async with scripted(picky) as server, probed() as it:
        engine = engine_at(server.port, "a")
        await within(it.probe.adopt(engine, Bytes(no_tools=True), "/models/m"))
        assert (engine.tokens, it.uses_own) == (TokenCheck.AGREES, True)
        await within(it.probe.adopt(engine, Bytes("1,234.5"), "/models/m"))
        assert (engine.tokens, it.uses_own) == (TokenCheck.DIFFERS, False)
        engine.pool.close()


async def test_a_slow_engine_is_not_waited_for() -> None:
    """An engine that does not answer is taken in all the same; when it answers, the comparison counts."""

    def slow(server: ScriptedEngine) -> Script:
        async def script(connection: Connection) -> None:
            await until(lambda: server.script is tokenize)
            await tokenize(connection)

        return script

    async with scripted(hang) as server, probed(patience_s=0.01) as it:
        server.script = slow(server)
        engine = engine_at(server.port, "a")
        await within(it.probe.adopt(engine, Bytes("How"), "/models/m"))
        assert (engine.tokens, it.uses_own) == (TokenCheck.COMPARING, True)
        server.script = tokenize
        await until(lambda: engine.tokens is TokenCheck.DIFFERS)
        assert not it.uses_own
        engine.pool.close()


async def test_an_engine_that_leaves_is_asked_no_more() -> None:
    """A comparison that runs ends with its engine."""
    async with scripted(hang) as server, probed(patience_s=0.01) as it:
        engine = engine_at(server.port, "a")
        await within(it.probe.adopt(engine, Bytes(), "/models/m"))
        await until(lambda: server.heads)
        it.probe.leave(engine)
        await until(lambda: not server.open)
        assert it.compared() == []
        engine.pool.close()
