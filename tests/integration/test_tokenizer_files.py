"""Other tokenizer files under the same path: engines come back with them, and the router sees it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from anbar.apps.emulator import EmulatedEngine
from anbar.apps.emulator.text import load_text
from anbar.apps.emulator.tiny_model import write_tiny_model
from tests.integration.harness import eventually
from tests.integration.stack import Setup, Stack, running_stack, text_prompt

pytestmark = pytest.mark.asyncio


def greet(model: Path) -> None:
    """Give a model another chat template, as an update of its files does: by new files."""
    file = model / "tokenizer_config.json"
    changed = json.loads(file.read_text())
    changed["chat_template"] += "{{ 'well met' }}"
    (model / "new").write_text(json.dumps(changed))
    (model / "new").rename(file)


async def becomes(stack: Stack, **wanted: str) -> None:
    async def is_so() -> bool:
        found = await stack.described()
        return {name: found[name]["tokens"] for name in wanted} == wanted

    await eventually(is_so, what=f"tokens were found to be {wanted}")


@asynccontextmanager
async def another_process(stack: Stack, name: str) -> AsyncIterator[None]:
    """An engine is started anew, with the files as they are now."""
    before = stack.engines[name]
    await before.die()
    await stack.becomes(name, "unhealthy")
    load_text.cache_clear()  # it is the same process, in truth
    async with EmulatedEngine(replace(before.settings, port=before.port)) as engine:
        stack.engines[name] = engine
        await stack.becomes(name, "ready")
        yield
        await stack.assert_idle()
        stack.engines[name] = before


async def test_engines_come_back_with_other_files(tmp_path: Path, socket_dir: Path) -> None:
    """The template changes under a running fleet. The first engine that is started anew has it, and so has
    the router from then on; the other one still has the old, which the router finds out by itself, and asks
    engines for tokens. When that one was started anew too, the router counts by itself again."""
    model = write_tiny_model(tmp_path / "fake-model")
    async with running_stack(Setup(model, socket_dir, num_engines=2)) as stack:
        await becomes(stack, e0="agrees", e1="agrees")
        greet(model)
        async with another_process(stack, "e0"):
            await becomes(stack, e0="agrees", e1="differs")
            async with another_process(stack, "e1"):
                await becomes(stack, e0="agrees", e1="agrees")
                await stack.followed()
                prompt = text_prompt("after")
                first = await stack.chat(prompt)
                await stack.followed()
                again = await stack.chat(prompt)
                assert again.engine == first.engine
                assert again.predicted == again.cached > 0


async def test_files_that_are_mended(tokenizer_dir: Path, tmp_path: Path, socket_dir: Path) -> None:
    """The router's own copy of the files is not the engines'. Once it is, the router uses it, and nobody is
    started anew."""
    own = write_tiny_model(tmp_path / "own")
    greet(own)
    setup = Setup(tokenizer_dir, socket_dir, num_engines=1, entries=[{"tokenizer": str(own)}])
    async with running_stack(setup) as stack:
        await becomes(stack, e0="differs")
        write_tiny_model(own)
        await becomes(stack, e0="agrees")


async def test_files_that_come_late(tokenizer_dir: Path, tmp_path: Path, socket_dir: Path) -> None:
    """The directory is empty when the router starts, and the engine is asked; then it is filled."""
    own = tmp_path / "own"
    own.mkdir()
    setup = Setup(tokenizer_dir, socket_dir, num_engines=1, entries=[{"tokenizer": str(own)}])
    async with running_stack(setup) as stack:
        await becomes(stack, e0="remote")
        write_tiny_model(own)
        await becomes(stack, e0="agrees")
