"""A configuration that changes while the router runs: what joins, what leaves, what is refused."""

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from scripted import ask, post, scripted
from test_router import METRICS, Pages, get
from tests.ports import free_port
from tests.waiting import PATIENCE_S, until, within

from anbar.adapters.http.limits import UpstreamLimits
from anbar.adapters.http.message import Request
from anbar.adapters.http.openai import ClientKv
from anbar.apps.file_watch import FileWatch
from anbar.apps.router import reload
from anbar.apps.router.app import Router
from anbar.apps.router.idempotency import IdempotencyConfig
from anbar.apps.router.reload import Source, changed_keys
from anbar.apps.router.worker import Worker
from anbar.config.load import leaf_values, load
from anbar.config.models import AnbarConfig
from anbar.config.split import Role
from anbar.core.errors import RequestError
from anbar.core.fleet import EngineState
from anbar.route.admission import AdmissionConfig
from anbar.route.breaker import BreakerConfig
from anbar.route.drift import DriftLimits
from anbar.route.policies import Session
from anbar.route.retry_budget import RetryConfig

BODY = b'{"model":"m","prompt":"x","max_tokens":1}'


NO_ROLES: Mapping[str, str] = {}


class Site:
    """A file, the router that runs on it, and what it has logged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = io.BytesIO()
        self.port = free_port()

    def write(self, engines: Mapping[str, int], roles: Mapping[str, str] = NO_ROLES, **router: Any) -> None:
        """Replace the file as editors and Kubernetes do: by another one."""
        settings = {"port": self.port, "health_interval_s": 0.03, "drain_timeout_s": PATIENCE_S, **router}
        entries = [
            {"name": name, "url": f"http://127.0.0.1:{port}", "role": roles.get(name, "both")}
            for name, port in engines.items()
        ]
        text = yaml.safe_dump({"engines": entries, "router": settings})
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.rename(self.path)

    @asynccontextmanager
    async def running(self, worker: Worker | None = None) -> AsyncIterator[Router]:
        source = Source(lambda: load(self.path, environ={}), self.path, {})
        router = Router(source.read(), {}, self.log, source, worker)
        await router.start()
        try:
            yield router
        finally:
            await router.stop()

    def lines(self, *kinds: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in found if line["event"] in kinds]

    async def told(self, num: int) -> dict[str, Any]:
        """The `num`-th line on what became of a configuration."""
        kinds = ("config_applied", "config_refused", "config_unchanged")
        await until(lambda: len(self.lines(*kinds)) >= num)
        return self.lines(*kinds)[num - 1]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(reload, "WATCH_S", 0.02)
    return Site(tmp_path / "anbar.yaml")


def states(router: Router) -> dict[str, EngineState]:
    return {engine.id: engine.health.state for engine in router.fleet}


async def test_engines_join_and_leave(site: Site) -> None:
    """A second engine is written into the file, then the first one is taken out: requests go to whatever is
    ready, and the one that is gone is no longer looked at."""
    async with AsyncExitStack() as stack:
        pages = [Pages(), Pages()]
        first, second = [await stack.enter_async_context(scripted(page.script)) for page in pages]
        for page in pages:
            page.computed.set()
        site.write({"a": first.port})
        router = await stack.enter_async_context(site.running())
        await until(lambda: states(router) == {"a": EngineState.READY})
        site.write({"a": first.port, "b": second.port})
        assert (await site.told(1))["event"] == "config_applied"
        await until(lambda: states(router) == dict.fromkeys("ab", EngineState.READY))
        kept = router.fleet["a"]
        site.write({"b": second.port})
        assert (await site.told(2))["generation"] == 3
        await until(lambda: states(router) == {"b": EngineState.READY})
        assert kept.health.state is EngineState.DRAINING
        assert kept.health.reason == "no longer in the configuration"
        text = await ask(site.port, post(BODY))
        assert b"x-anbar-engine: b" in text
        await until(lambda: site.lines("request"))
        assert site.lines("request")[-1]["config"] == 3
        _, page, _ = await get(site.port, "/metrics")
        assert b"anbar_router_config_generation 3.0" in page


async def test_a_stream_outlives_the_entry_of_its_engine(site: Site) -> None:
    """The engine of a running request is taken out of the file: the request gets its answer, no other one
    gets there, and then the engine is dropped."""
    async with AsyncExitStack() as stack:
        pages = [Pages(), Pages()]
        first, second = [await stack.enter_async_context(scripted(page.script)) for page in pages]
        site.write({"a": first.port})
        router = await stack.enter_async_context(site.running())
        await until(lambda: states(router) == {"a": EngineState.READY})
        leaving = router.fleet["a"]
        asked = asyncio.create_task(ask(site.port, post(BODY)))
        await until(lambda: leaving.load.num_in_flight == 1)
        site.write({"b": second.port})
        await until(lambda: states(router) == {"a": EngineState.DRAINING, "b": EngineState.READY})
        assert not asked.done()
        pages[0].computed.set()
        assert b"x-anbar-engine: a" in await within(asked)
        await until(lambda: states(router) == {"b": EngineState.READY})
        assert leaving.load.num_in_flight == 0


async def test_another_address_is_another_engine(site: Site) -> None:
    """The address under a name changes: the engine there is looked at from its start."""
    async with AsyncExitStack() as stack:
        pages = [Pages(), Pages()]
        first, second = [await stack.enter_async_context(scripted(page.script)) for page in pages]
        pages[1].metrics = METRICS.replace(b'"16"', b'"32"')
        site.write({"a": first.port})
        router = await stack.enter_async_context(site.running())
        await until(lambda: states(router) == {"a": EngineState.READY})
        before = router.fleet["a"]
        site.write({"a": second.port})
        await site.told(1)
        await until(lambda: router.fleet["a"] is not before and router.fleet["a"].is_ready)
        assert (before.facts.block_size, router.fleet["a"].facts.block_size) == (16, 32)
        assert before.health.state is EngineState.DRAINING


async def test_a_drained_engine_stays_drained(site: Site) -> None:
    """Somebody has drained an engine; then its entry changes. It gets nothing, until somebody undrains it."""
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(scripted(Pages().script)) for _ in range(2)]
        site.write({"a": first.port})
        router = await stack.enter_async_context(site.running())
        await until(lambda: states(router) == {"a": EngineState.READY})
        router.fleet["a"].draining = True
        site.write({"a": second.port})
        await site.told(1)
        await until(lambda: states(router) == {"a": EngineState.READY})
        assert router.fleet["a"].state is EngineState.DRAINING


async def test_a_policy_that_did_not_change_goes_on(site: Site) -> None:
    """Another interval between probes: whose turn it is with round_robin is not forgotten."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(scripted(Pages().script))
        site.write({"a": engine.port}, policy="round_robin")
        router = await stack.enter_async_context(site.running())
        before = router.flow.parts.policy
        site.write({"a": engine.port}, policy="round_robin", health_interval_s=0.04)
        await site.told(1)
        assert router.flow.parts.policy is before
        site.write({"a": engine.port}, policy="random", health_interval_s=0.04)
        await site.told(2)
        assert router.flow.parts.policy.name == "random"


async def test_a_split_is_live(site: Site) -> None:
    """Prefill and decode are split from now on, then for longer prompts only, then with another limit on
    what waits, then no more; an engine with another role is another engine."""
    async with AsyncExitStack() as stack:
        p = await stack.enter_async_context(scripted(Pages().script))
        d = await stack.enter_async_context(scripted(Pages().script))
        ports, roles = {"p": p.port, "d": d.port}, {"p": "prefill"}
        site.write(ports)
        router = await stack.enter_async_context(site.running())
        assert not router.handover.is_on
        site.write(ports, roles, split={"via": "shared", "min_uncached_tokens": 7})
        assert (await site.told(1))["needs_restart"] == []
        assert (router.handover.is_on, router.handover.setup.rule.min_uncached_tokens) == (True, 7)
        assert [engine.role for engine in router.fleet] == [Role.PREFILL, Role.BOTH]
        site.write(ports, roles, policy="random", split={"via": "shared", "min_uncached_tokens": 9})
        await site.told(2)
        setup = router.handover.setup
        assert (setup.rule.min_uncached_tokens, setup.policy.name) == (9, "random")
        site.write(
            ports, roles, policy="random", max_waiting=3, split={"via": "shared", "min_uncached_tokens": 9}
        )
        await site.told(3)
        assert router.handover.setup.admission.max_waiting == 3
        assert router.handover.setup.policy is setup.policy
        site.write(ports)
        await site.told(4)
        assert not router.handover.is_on


async def test_tenants_are_live(site: Site) -> None:
    """Tenants come with a reload, and one that is taken out again is refused from then on."""
    async with scripted(Pages().script) as one:
        site.write({"a": one.port}, policy="random")
        async with site.running() as router:
            table = router.flow.parts.tenancy
            assert table.table is None
            for names, scopes in (({"ada": {}, "bank": {}}, ["ada", "bank"]), ({"bank": {}}, [None, "bank"])):
                applied = len(site.lines("config_applied"))
                tenants = {"header": "x-tenant", "by_name": names}
                new = site.path.with_suffix(".new")
                new.write_text(yaml.safe_dump({**yaml.safe_load(site.path.read_text()), "tenants": tenants}))
                new.rename(site.path)
                await until(lambda before=applied: len(site.lines("config_applied")) > before)
                assert [_scope(router, tenant) for tenant in (b"ada", b"bank")] == scopes


def _scope(router: Router, tenant: bytes) -> str | None:
    assert router.flow.parts.tenancy.table is not None
    try:
        return router.flow.parts.tenancy.table.of(Request(b"POST", b"/", ((b"x-tenant", tenant),), b"")).scope
    except RequestError:
        return None


async def test_limits_of_the_self_check_are_live(site: Site) -> None:
    """Stricter limits: the engine that is there is judged by them, and one that joins is too."""
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(scripted(Pages().script))
        b = await stack.enter_async_context(scripted(Pages().script))
        site.write({"a": a.port})
        router = await stack.enter_async_context(site.running())
        site.write({"a": a.port, "b": b.port}, self_check={"window": 16, "max_absent": 0.1})
        await site.told(1)
        wanted = DriftLimits(window=16, max_absent=0.1)
        assert [router.fleet[name].drift.limits for name in ("a", "b")] == [wanted, wanted]


async def test_a_bad_file_is_refused_and_the_old_one_goes_on(site: Site) -> None:
    """A key that does not exist: the log and the admin page name file, line and key, the metric is 1, and
    requests are served as before. The mended file clears it; what is unchanged has no new generation."""
    async with AsyncExitStack() as stack:
        pages = Pages()
        pages.computed.set()
        engine = await stack.enter_async_context(scripted(pages.script))
        site.write({"a": engine.port})
        router = await stack.enter_async_context(site.running())
        await until(lambda: states(router) == {"a": EngineState.READY})
        site.write({"a": engine.port}, polcy="random")
        refused = await site.told(1)
        assert refused["event"] == "config_refused"
        assert f"{site.path}:" in refused["reason"]
        assert "router.polcy" in refused["reason"]
        _, page, _ = await get(site.port, "/admin/config")
        assert (page["generation"], page["refusal"]) == (1, refused["reason"])
        assert b"anbar_router_config_refused 1.0" in (await get(site.port, "/metrics"))[1]
        assert b"HTTP/1.1 200" in await ask(site.port, post(BODY))
        site.write({"a": engine.port})
        assert (await site.told(2))["event"] == "config_unchanged"
        _, page, _ = await get(site.port, "/admin/config")
        assert (page["generation"], page["refusal"], page["num_refused"]) == (1, "", 1)


async def test_what_needs_a_restart_is_named(site: Site) -> None:
    """Policy and port change together: the policy applies at once, the port is named until it is changed
    back, also when nothing else changes."""
    async with AsyncExitStack() as stack:
        pages = Pages()
        pages.computed.set()
        engine = await stack.enter_async_context(scripted(pages.script))
        site.write({"a": engine.port})
        router = await stack.enter_async_context(site.running())
        await until(lambda: states(router) == {"a": EngineState.READY})
        site.write({"a": engine.port}, policy="round_robin", port=1)
        told = await site.told(1)
        assert (told["applied"], told["needs_restart"]) == (["router.policy"], ["router.port"])
        assert b"x-anbar-policy: round_robin" in await ask(site.port, post(BODY))
        router.reloader.ask()
        told = await site.told(2)
        assert (told["event"], told["needs_restart"]) == ("config_unchanged", ["router.port"])
        site.write({"a": engine.port}, policy="round_robin")
        assert (await site.told(3))["needs_restart"] == []


async def test_a_key_that_cannot_be_read_changes_nothing(site: Site, tmp_path: Path) -> None:
    """A good file names a key file that is not there: refused as a whole, with the line of that key; the new
    engine is not added."""
    site.write({"a": free_port()})
    async with site.running() as router:
        text = yaml.safe_load(site.path.read_text())
        text["engines"].append(
            {"name": "b", "url": "http://127.0.0.1:1", "api_key_file": str(tmp_path / "none")}
        )
        site.path.write_text(new := yaml.safe_dump(text))
        told = await site.told(1)
        assert told["event"] == "config_refused"
        line = next(n for n, each in enumerate(new.splitlines(), 1) if "api_key_file" in each)
        assert told["reason"].startswith(f"{site.path}:{line}: engines: the API key file of 'b', ")
        assert list(states(router)) == ["a"]


def test_a_file_is_read_when_it_rests() -> None:
    """A file that changes at each look is being written; one that is away is no change; one that is back as
    it was is none either."""
    old, half, whole = (1, 10, 100), (2, 5, 200), (2, 9, 201)
    watch = FileWatch(old)
    looks = [old, half, whole, None, None, old, old, None, whole, whole]
    assert [watch.is_due(look) for look in looks] == [False] * 9 + [True]
    watch.was_read(whole)
    assert [watch.is_due(look) for look in (whole, whole, old, old)] == [False, False, False, True]


def test_keys_that_differ() -> None:
    """Values that differ, by whether a running router can take them; an engine more counts with all its
    keys."""
    engine = {"name": "a", "url": "http://h:1"}
    before = AnbarConfig.model_validate({"engines": [engine]})
    assert changed_keys(before, before) == ((), ())
    more = {"engines": [engine, {"name": "b", "url": "http://h:2"}], "cache": {"mode": "none"}}
    live, restart = changed_keys(before, AnbarConfig.model_validate(more))
    assert {"engines[1].name", "engines[1].url"} <= set(live)
    assert restart == ("cache.mode",)
    for key in reload.LIVE:
        assert any(f"{leaf}.".startswith((f"{key}.", f"{key}[")) for leaf in leaf_values(before)), key


def _keys(model: type[BaseModel], path: str) -> Iterator[str]:
    """The dotted keys of all values below a model; below a list or a mapping of models no more."""
    for name, field in model.model_fields.items():
        key = f"{path}.{name}" if path else name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _keys(field.annotation, key)
        else:
            yield key


def test_every_key_is_live_or_needs_a_restart() -> None:
    """A new key has to be put into one of both sets, and only into one; neither names a key that is not."""
    keys = set(_keys(AnbarConfig, ""))
    assert len(keys) > 50
    named = [*reload.LIVE, *reload.RESTART]
    for key in keys:
        assert sum(key == one or key.startswith(f"{one}.") for one in named) == 1, key
    for one in named:
        assert any(key == one or key.startswith(f"{one}.") for key in keys), one


APART = {"router.split", "router.self_check"}
"""Live, with tests of their own."""


async def test_figures_of_running_parts(site: Site) -> None:
    """Retries, breakers, queues, limits, what is kept: the router goes by what is in the file, at once.
    Every live key is here, or has a test of its own."""
    async with scripted(Pages().script) as engine:
        site.write({"a": engine.port})
        async with site.running() as router:
            await until(lambda: states(router) == {"a": EngineState.READY})
            figures = {
                "retry_share": 0.4,
                "retry_floor": 3,
                "breaker_failures": 7,
                "breaker_pause_s": 2.5,
                "max_ejected_share": 0.25,
                "max_waiting": 9,
                "slo_ttft_s": 1.5,
                "idempotency_window_s": 8.0,
                "idempotency_max_bytes": 4096,
                "prefix": {"max_age_s": 33.0},
                "continue_streams": False,
                "load_check_interval_s": 3600.0,
                "health_interval_s": 0.04,
                "drain_timeout_s": 2.0 * PATIENCE_S,
                "total_timeout_s": 5.0 * PATIENCE_S,
                "connect_timeout_s": 3.0 * PATIENCE_S,
                "first_byte_timeout_s": 4.0 * PATIENCE_S,
                "idle_timeout_s": 2.5 * PATIENCE_S,
                "max_body_bytes": 12345,
                "client_kv_fields": "allow",
                "policy": "session",
                "session": {"header": "x-chat", "bound": 2.5},
                "models": {"gpt": "m"},
            }
            live = {key for key in reload.LIVE - APART if key.startswith("router.")}
            assert live == {f"router.{name}" for name in figures}
            kept = router.flow.parts.budget, router.flow.parts.idempotency, router.fleet["a"].breaker
            site.write({"a": engine.port}, **figures)
            told = await site.told(1)
            applied = {re.split(r"[.[]", key)[1] for key in told["applied"]}
            assert (told["needs_restart"], applied) == ([], set(figures))
            parts, breaker = router.flow.parts, router.fleet["a"].breaker
            assert (parts.budget, parts.idempotency, breaker) == kept
            assert parts.budget.config == RetryConfig(0.4, 3)
            assert breaker.config == BreakerConfig(7, 2.5)
            assert parts.idempotency.config == IdempotencyConfig(8.0, 4096)
            assert parts.admission == AdmissionConfig(9, 1.5)
            assert (parts.continues, router.flow._forwarder._continues) == (False, False)
            assert (router._loads.interval_s, router._monitor.interval_s) == (3600.0, 0.04)
            assert router._config.router.drain_timeout_s == 2.0 * PATIENCE_S
            assert parts.total_timeout_s == 5.0 * PATIENCE_S
            assert router.fleet["a"].pool.limits == UpstreamLimits(
                connect_timeout_s=3.0 * PATIENCE_S,
                first_byte_timeout_s=4.0 * PATIENCE_S,
                idle_timeout_s=2.5 * PATIENCE_S,
            )
            limits = router._server.limits
            assert (limits.max_body_bytes, limits.body_timeout_s) == (12345, 2.5 * PATIENCE_S)
            assert (parts.client_kv, parts.session_header) == (ClientKv.ALLOW, b"x-chat")
            assert isinstance(parts.policy, Session)
            assert (parts.policy._bound, router.naming.targets.names) == (2.5, ("gpt",))
            assert (parts.standing.max_ejected_share, parts.caches.max_age_s) == (0.25, 33.0)
