"""Tenants of a router in front of a real engine: who finds whose blocks, and what a purge leaves."""

import asyncio
import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from anbar.adapters.keys.files import KEYS_DIR, KeyFiles
from anbar.apps.purge import purge
from anbar.config.load import load
from anbar.core.salt import cache_salt
from tests.engine.conftest import StorePair
from tests.engine.engine import BLOCK, SERVED_NAME, Engine, story
from tests.integration.harness import Answer, call, eventually
from tests.integration.router import running_router
from tests.ports import free_port

pytestmark = pytest.mark.shared

PROMPT = story(700, 20)
STORES = "anbar_tier_stores_total"
TENANTS = {"header": "x-tenant", "by_name": {"ada": {"group": "lab"}, "grace": {"group": "lab"}, "shop": {}}}


async def ask(port: int, tenant: str) -> Answer:
    """Without haste."""
    body = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0, "ignore_eos": True, "model": SERVED_NAME}
    headers = {"content-type": "application/json", "x-tenant": tenant}
    url = f"http://127.0.0.1:{port}/v1/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)

    def read() -> Answer:
        with urllib.request.urlopen(request, timeout=300) as response:
            found = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, found, response.read())

    return await asyncio.to_thread(read)


def asked_before(engine: Engine, keys: KeyFiles, epoch: bytes) -> int:
    """Tokens that the engine finds for a request of `shop` as it was in that epoch."""
    params = {"anbar": {"v": 1, "scope": "shop", "store": "never"}}
    salt = cache_salt(keys.secret(), "shop", epoch)
    return engine.complete(PROMPT, 2, cache_salt=salt, kv_transfer_params=params).cached


async def test_tenants_never_share_and_a_purge_makes_a_miss(
    store_pair: Callable[[], StorePair], tmp_path: Path
) -> None:
    """One prompt, computed once by a group of two and once by a third tenant, who finds it afterwards. After
    a purge the next request of that tenant finds nothing, though the device has its blocks still; once it has
    lost them, the store has not either. The group finds all it had."""
    pair = store_pair()
    engine, port, path = pair.first, free_port(), tmp_path / "anbar.yaml"
    config = {
        "state_dir": str(tmp_path / "state"),
        "engines": [{"name": "e", "url": engine.url}],
        "cache": {"store": {"path": str(pair.store), "id": "test"}},
        "router": {"port": port},
        "tenants": TENANTS,
    }
    path.write_text(yaml.safe_dump(config))
    keys = KeyFiles(tmp_path / "state" / KEYS_DIR)

    async def is_ready() -> bool:
        page = (await call(port, "GET", "/admin/engines")).json
        return all(found["state"] == "ready" for found in page["engines"])

    async def is_forgotten() -> bool:
        return not (await ask(port, "shop")).cached

    async with running_router(path):
        await eventually(is_ready, what="the engine is ready")
        stored = engine.metric(STORES, result="hit")
        first = await ask(port, "ada")
        num_tokens = first.json["usage"]["prompt_tokens"]
        whole = (num_tokens - 1) // BLOCK * BLOCK
        assert [first.cached, (await ask(port, "shop")).cached] == [0, 0]
        assert (await ask(port, "grace")).cached >= whole
        assert (await ask(port, "shop")).cached >= whole
        engine.wait_metric(STORES, stored + 2 * (num_tokens // BLOCK), result="hit")

        purged = await asyncio.to_thread(purge, load(path).config, "shop")
        assert any("entries removed" in text for text in purged.done), purged
        await eventually(is_forgotten, what="the new salt is in force")
        assert (await ask(port, "grace")).cached >= whole
    assert asked_before(engine, keys, b"") >= whole, "the device has it still"
    engine.forget(host=True)
    assert engine.heard(lambda: engine.complete(PROMPT, 1)).cached == 0
    assert asked_before(engine, keys, b"") == 0, "and the store has not"
