"""Tenants behind a trusted gateway: who shares, who never does, and what a purge takes away."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from anbar.apps.stores import open_store
from anbar.config.stores import StoreConfig
from anbar.sim.engine.shape import HostShape
from anbar.sim.engine.shared import SharedTier
from anbar.tier.store import Outcome, PutItem
from tests.integration.harness import Answer, call, eventually
from tests.integration.stack import (
    COMPLETIONS,
    Setup,
    Stack,
    completion,
    engines_of,
    router_of,
    text_prompt,
)
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEY = b"k" * 36
TENANTS = {
    "header": "x-tenant",
    "by_name": {"ada": {"group": "lab"}, "grace": {"group": "lab"}, "shop": {}, "bank": {}},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def routers(tokenizer_dir: Path, module_dir: Path) -> AsyncIterator[tuple[Stack, Stack]]:
    """Two routers in front of the same engines, with one state directory."""
    setup = Setup(
        tokenizer_dir,
        module_dir,
        router={"client_kv_fields": "allow"},
        engine={"host_tier": HostShape(512), "shared": SharedTier(4096)},
        file={"tenants": TENANTS},
    )
    async with (
        engines_of(setup) as engines,
        router_of(setup, engines) as one,
        router_of(setup, engines) as other,
    ):
        for router in (one, other):
            await router.followed()
            await router.compared()
        yield one, other


async def ask(stack: Stack, tenant: str, prompt: str, **fields: object) -> Answer:
    """Its answer, once the router has taken in what came of it."""
    answer = await stack.post(COMPLETIONS, completion(prompt, **fields), {"x-tenant": tenant})
    assert answer.status == 200, answer.body
    await stack.followed()
    return answer


def found(answer: Answer) -> tuple[int | None, int | None]:
    return answer.predicted, answer.cached


async def anbar(*args: str) -> tuple[int | None, str]:
    """The command's exit status and what it has said."""
    command = [sys.executable, "-m", "anbar.cli.main", *args]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
    said, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    return process.returncode, said.decode()


async def test_tenants_share_within_their_group_alone(routers: tuple[Stack, Stack]) -> None:
    """One prompt of three tenants. Each scope computes it once; what is found after that, in the device, in
    host memory or in the store, is known beforehand to the token, by another router too."""
    stack, other = routers
    prompt = text_prompt("the same of all")
    for tenant in ("ada", "shop", "bank"):
        assert found(await ask(stack, tenant, prompt)) == (0, 0), tenant
    for tenant in ("grace", "shop", "bank"):
        predicted, cached = found(await ask(stack, tenant, prompt))
        assert predicted == cached, tenant
        assert cached, tenant
    await other.followed()
    assert found(await ask(other, "grace", prompt)) == (predicted, cached)


async def test_nobody_gets_into_another_scope(routers: tuple[Stack, Stack]) -> None:
    """Whatever a request says of salt and scope, also the very salt of another tenant, that tenant's blocks
    are not found with it. What says nothing that can be believed reaches no engine."""
    stack, _ = routers
    prompt = text_prompt("a secret")
    before = stack.num_seen
    assert (await ask(stack, "bank", prompt)).cached == 0
    bodies = [json.loads(seen.body) for engine in stack.engines.values() for seen in engine.records.seen]
    (salt,) = {body["cache_salt"] for body in bodies if body["prompt"] == prompt}
    params = {"anbar": {"v": 1, "scope": "bank", "expect_tokens": 64, "wait_ms": 0}}
    for fields in ({"cache_salt": salt, "kv_transfer_params": params}, {"kv_transfer_params": params}):
        assert not (await ask(stack, "shop", prompt, **fields)).cached, fields
    assert not (await ask(stack, "ada", prompt)).cached
    seen = stack.num_seen
    assert seen == before + 4
    for tenant in ("mallory", "", "bank, shop", "lab"):
        answer = await stack.post(COMPLETIONS, completion(prompt), {"x-tenant": tenant})
        assert (answer.status, answer.json["error"]["code"]) == (403, "unknown_tenant")
    assert stack.num_seen == seen


async def test_a_purge_takes_effect_in_running_routers(
    routers: tuple[Stack, Stack], module_dir: Path
) -> None:
    """The command purges one tenant: what it had asked before is computed anew, by way of either router,
    although an engine's device has all of it still; its entries are gone from the store. Others find what
    they had."""
    store = open_store(StoreConfig(path=_made(module_dir / "state/store")), b"a model")
    for scope in ("shop", "bank"):
        item = PutItem(KEY, memoryview(b"value"))
        assert store.put([item], scope=scope, timeout_s=PATIENCE_S) == [Outcome.HIT]
    prompts = [text_prompt(f"{name}, to be forgotten") for name in ("one", "other")]
    for router, prompt in zip(routers, prompts, strict=True):
        for tenant in ("shop", "bank"):
            await ask(router, tenant, prompt)
            assert (await ask(router, tenant, prompt)).cached
    status, said = await anbar("cache", "purge", *_config(module_dir), "--tenant", "shop")
    assert status == 0, said
    assert "entries removed" in said
    for router, prompt in zip(routers, prompts, strict=True):

        async def is_forgotten(router: Stack = router, prompt: str = prompt) -> bool:
            return found(await ask(router, "shop", prompt)) == (0, 0)

        await eventually(is_forgotten, what="the new salt is in force")
        assert (await ask(router, "bank", prompt)).cached
        assert await _is_held(router, prompt, "shop")
    assert store.exists([KEY], scope="shop", timeout_s=PATIENCE_S) == [Outcome.MISS]
    assert store.exists([KEY], scope="bank", timeout_s=PATIENCE_S) == [Outcome.HIT]
    store.close()


async def _is_held(stack: Stack, prompt: str, tenant: str) -> bool:
    """Whether an engine has what a tenant's first request left there: it is asked with that very body."""
    bodies = [json.loads(seen.body) for engine in stack.engines.values() for seen in engine.records.seen]
    first = next(
        body
        for body in bodies
        if body["prompt"] == prompt and body["kv_transfer_params"]["anbar"]["scope"] == tenant
    )
    answers = [await call(engine.port, "POST", COMPLETIONS, first) for engine in stack.engines.values()]
    return any(answer.cached for answer in answers)


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _config(directory: Path) -> list[str]:
    return ["--config", str(directory / "anbar.yaml")]


async def test_a_purge_of_a_group_is_asked_for_by_its_name(
    routers: tuple[Stack, Stack], module_dir: Path
) -> None:
    """By a tenant's name it is refused, in one line that says what to type."""
    status, said = await anbar("cache", "purge", *_config(module_dir), "--tenant", "ada")
    assert (status, "--group lab" in said, said.count("\n")) == (2, True, 1)
