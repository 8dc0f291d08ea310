"""Whose request it is, and what reaches the engine for that."""

import json
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted import END, SSE, Connection, answer, ask, engine_at, path_to, post, scripted
from tests.waiting import until

from anbar.adapters.http.message import Header, Request
from anbar.adapters.http.openai import ClientKv, Endpoint, parse
from anbar.adapters.http.rewrite import member_span
from anbar.adapters.keys.files import KeyFiles
from anbar.apps.router.tenancy import Table, Tenancy
from anbar.apps.router.tenant_watch import TenantWatch
from anbar.config.split import Role, SplitVia
from anbar.config.tenants import TenantsConfig
from anbar.core.errors import ConfigError, RequestError
from anbar.core.outcome import Event, Outcome
from anbar.core.request import RouteQuery

TENANTS: dict[str, Any] = {
    "header": "x-tenant",
    "scopes": {"bank": {"store": "never"}},
    "by_name": {"ada": {"group": "lab"}, "grace": {"group": "lab"}, "bank": {}, "shop": {}},
}
GOOD = b'{"choices": [{"text": "x"}], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}'
BODY = b'{"model": "m",  "prompt": [1, 2, 3, 4, 5], "max_tokens": 7, "unknown": 1.50}'


@pytest.fixture
def files(tmp_path: FilePath) -> KeyFiles:
    return KeyFiles(tmp_path / "keys")


def table(files: KeyFiles, **changes: object) -> Table:
    return Table(TenantsConfig.model_validate({**TENANTS, **changes}), files)


def named(*tenants: bytes, body: bytes = BODY) -> Request:
    headers: tuple[Header, ...] = tuple((b"x-tenant", tenant) for tenant in tenants)
    return Request(b"POST", b"/v1/completions", (*headers, (b"x-other", b"bank")), body)


def salts(found: Table, *tenants: bytes) -> list[str]:
    return [found.of(named(tenant)).salt for tenant in tenants]


def test_a_group_has_one_salt_and_others_their_own(files: KeyFiles) -> None:
    """Equal on every router that shares the directory, and another after a purge of the scope alone."""
    ada, grace, bank, shop = salts(table(files), b"ada", b"grace", b"bank", b"shop")
    assert ada == grace
    assert len({ada, bank, shop}) == 3
    assert salts(table(KeyFiles(files._directory)), b"ada", b"bank") == [ada, bank]
    files.purge("lab")
    assert salts(table(files), b"bank", b"shop") == [bank, shop]
    purged = salts(table(files), b"ada", b"grace")
    assert purged[0] == purged[1] != ada


@pytest.mark.parametrize(
    ("tenants", "code"),
    [
        ([], "unknown_tenant"),
        ([b"mallory"], "unknown_tenant"),
        ([b"lab"], "unknown_tenant"),
        ([b"ADA"], "unknown_tenant"),
        ([b"ada,bank"], "unknown_tenant"),
        ([b"\xff\xfe"], "unknown_tenant"),
        ([b"ada", b"bank"], "ambiguous_tenant"),
        ([b"ada", b"ada"], "ambiguous_tenant"),
    ],
)
def test_who_is_not_known_is_refused(files: KeyFiles, tenants: Sequence[bytes], code: str) -> None:
    """No name, another's, a group's, or more than one: 403, in words that tell no tenant's name."""
    with pytest.raises(RequestError) as caught:
        table(files).of(named(*tenants))
    assert (caught.value.status, caught.value.code) == (403, code)
    assert not any(name in caught.value.message for name in TENANTS["by_name"])


def test_an_encrypted_scope_says_so(files: KeyFiles) -> None:
    """Engines that were started before it was encrypted can keep it out of the store; a client cannot take
    that back."""
    scopes = {"lab": {"encrypt": True}}
    found = table(files, scopes=scopes)
    assert found.of(named(b"ada")).wish == {"v": 1, "scope": "lab", "store": "auto", "sealed": True}
    assert found.of(named(b"bank")).wish == {"v": 1, "scope": "bank", "store": "auto"}
    theirs = {"anbar": {"store": "always", "sealed": False}}
    body = json.dumps({"model": "m", "prompt": "x", "kv_transfer_params": theirs}).encode()
    request, api = named(b"ada", body=body), parse(Endpoint.COMPLETIONS, body, ClientKv.ALLOW)
    sent, _ = found.of(request).put_into(request, api)
    wish = json.loads(sent.body)["kv_transfer_params"]["anbar"]
    assert wish == {"v": 1, "scope": "lab", "store": "always", "sealed": True}


def test_who_is_not_known_may_share(files: KeyFiles) -> None:
    """With `unknown: shared` all such requests have the default scope; one that names two tenants is nobody's
    still."""
    found = table(files, unknown="shared")
    assert {found.of(named(*tenants)).scope for tenants in ([], [b"mallory"])} == {""}
    assert found.of(named(b"bank")).scope == "bank"
    with pytest.raises(RequestError, match="more than one"):
        found.of(named(b"ada", b"bank"))


def test_without_a_header_all_are_one_tenant(files: KeyFiles) -> None:
    """Whatever a request says."""
    found = Table(TenantsConfig(), files)
    assert {found.of(named(*tenants)).scope for tenants in ([], [b"bank"], [b"a", b"b"])} == {""}


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
_blanks = st.sampled_from(["", " ", "\n\t"])
_params = st.dictionaries(
    st.sampled_from(["anbar", "do_remote_prefill", "max_load_tokens"]),
    st.fixed_dictionaries({}, optional={"scope": st.just("bank"), "store": st.sampled_from(["never", "x"])}),
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A completion, laid out in some way, with or without what a client may not decide."""
    members = draw(
        st.dictionaries(st.text(max_size=8).filter(lambda name: name[:1] != "_"), _json, max_size=4)
    )
    members = {f"_{name}": value for name, value in members.items()}
    members |= {"model": "m", "prompt": draw(st.text(min_size=1, max_size=20))}
    if draw(st.booleans()):
        members["cache_salt"] = draw(st.none() | st.sampled_from(["own", "ü", "x" * 128]))
    for name in ("kv_transfer_params", "ec_transfer_params"):
        if draw(st.booleans()):
            members[name] = draw(st.none() | _params)
    order = draw(st.permutations(list(members)))
    ascii_only, blank, colon = draw(st.booleans()), draw(_blanks), draw(_blanks)
    parts = [
        f"{blank}{json.dumps(name, ensure_ascii=ascii_only)}{colon}:"
        f"{json.dumps(members[name], ensure_ascii=ascii_only)}"
        for name in order
    ]
    return ("{" + ",".join(parts) + blank + "}").encode("utf-8", "replace")


OURS = ("cache_salt", "kv_transfer_params", "ec_transfer_params")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bodies(), st.sampled_from([b"ada", b"shop"]))
def test_salt_and_scope_are_put_in_place(files: KeyFiles, body: bytes, tenant: bytes) -> None:
    """All other bytes are the client's; the engine reads the router's salt and scope, whatever the client has
    sent of either, and what the router believes of the body is what is in it."""
    member = table(files).of(named(tenant))
    api = parse(Endpoint.COMPLETIONS, body, ClientKv.ALLOW)
    request, scoped = member.put_into(named(tenant, body=body), api)
    assert json.loads(request.body) == scoped.body
    said = scoped.body["kv_transfer_params"]
    assert isinstance(said, dict)
    assert said.keys() == {"anbar"}
    assert (said["anbar"]["v"], said["anbar"]["scope"]) == (1, member.scope)
    assert said["anbar"] == scoped.wish
    assert scoped.body.get("ec_transfer_params") is None
    own = api.body.get("cache_salt")
    assert scoped.cache_salt == scoped.body["cache_salt"]
    assert (scoped.cache_salt == member.salt) is (own is None)
    assert _rest(request.body) == _rest(body)


def _rest(body: bytes) -> bytes:
    """A body with 0 for the values of our members, and without those of them that it begins with."""
    for name in OURS:
        if (span := member_span(body, name)) is not None:
            body = body[: span[0]] + b"0" + body[span[1] :]
    while begin := [name for name in OURS if body.startswith(b'{"%b":0,' % name.encode())]:
        body = b"{" + body[len(begin[0]) + 6 :]
    return body


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_salt_of_ones_own_keeps_apart_within_the_scope(files: KeyFiles, one: str, other: str) -> None:
    """Two clients of a tenant that send salts share with whoever sends the same, and with nobody else: not
    with another tenant's client that sends it too."""
    ada, shop = (table(files).of(named(tenant)) for tenant in (b"ada", b"shop"))
    assert (ada.own_salt(one) == ada.own_salt(other)) is (one == other)
    assert len({ada.own_salt(one), ada.salt, shop.own_salt(one), shop.salt}) == 4


@pytest.mark.parametrize(
    ("tenant", "asked", "stored"),
    [
        (b"shop", "never", "never"),
        (b"shop", "always", "always"),
        (b"shop", "often", "auto"),
        (b"bank", "always", "never"),
    ],
)
def test_what_a_client_may_ask(files: KeyFiles, tenant: bytes, asked: str, stored: str) -> None:
    """Whether it is stored, unless its scope never is; neither whose it is nor where its blocks come from."""
    params = {"anbar": {"v": 1, "scope": "lab", "store": asked, "wait_ms": 9}, "do_remote_prefill": True}
    body = json.dumps({"model": "m", "prompt": "x", "kv_transfer_params": params}).encode()
    api = parse(Endpoint.COMPLETIONS, body, ClientKv.ALLOW)
    request, _ = table(files).of(named(tenant)).put_into(named(body=body), api)
    scope = tenant.decode()
    assert json.loads(request.body)["kv_transfer_params"] == {
        "anbar": {"v": 1, "scope": scope, "store": stored}
    }


def by(tenant: str, body: bytes = BODY, key: str = "") -> bytes:
    """A tenant's request, under an idempotency key if one is given."""
    headers = f"connection: close\r\nx-tenant: {tenant}\r\n" + (f"idempotency-key: {key}\r\n" if key else "")
    return post(body, headers.encode())


def scope_at(body: bytes) -> tuple[str, str]:
    found = json.loads(body)
    return found["kv_transfer_params"]["anbar"]["scope"], found["cache_salt"]


async def test_engines_are_told_whose_a_request_is(files: KeyFiles) -> None:
    """Salt and scope reach the engine, the salt is part of what the router looks up, and the scope is noted.
    A refused request reaches nobody."""
    queries: list[RouteQuery] = []
    async with scripted(answer(GOOD)) as engine, path_to([engine_at(engine.port, "a")]) as path:
        found = path.flow.parts.tenancy.table = table(files)
        match = path.flow.parts.caches.match
        path.flow.parts.caches.match = lambda query, *rest: (queries.append(query), match(query, *rest))[1]  # type: ignore[method-assign,func-returns-value]
        text = await ask(path.port, by("ada"))
        event = await path.finished()
        refused = await ask(path.port, by("mallory"))
        salted = await ask(path.port, by("ada", BODY[:-1] + b', "cache_salt": "x"}'))
    assert text.endswith(GOOD)
    (body,) = engine.bodies
    member = found.of(named(b"ada"))
    assert body == BODY.replace(b"{", b"{" + member.members + b",", 1)
    assert scope_at(body) == ("lab", member.salt)
    assert {query.cache_salt for query in queries} == {member.salt}
    assert (event.scope, event.outcome) == ("lab", Outcome.OK)
    assert refused.startswith(b"HTTP/1.1 403 ")
    assert json.loads(refused.partition(b"\r\n\r\n")[2])["error"]["code"] == "unknown_tenant"
    assert salted.startswith(b"HTTP/1.1 400 ")


async def test_an_idempotency_key_is_the_tenants(files: KeyFiles) -> None:
    """Two tenants with one key and one body each get an answer of their own; a repetition gets the first
    answer, also when the salt has changed in between."""
    async with scripted(answer(GOOD)) as engine, path_to([engine_at(engine.port, "a")]) as path:
        path.flow.parts.tenancy.table = table(files)
        for tenant in ("ada", "grace", "ada"):
            assert (await ask(path.port, by(tenant, key="k"))).endswith(GOOD)
        files.purge("lab")
        path.flow.parts.tenancy.table = table(files)
        repeated = await ask(path.port, by("ada", key="k"))
    assert b"idempotent-replayed: true" in repeated
    assert len(engine.bodies) == 2


WHERE = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2]], "remote_port": 5}
COMPUTED = json.dumps(
    {"choices": [{"text": "x"}], "usage": {"prompt_tokens": 5}, "kv_transfer_params": WHERE}
).encode()


@pytest.mark.parametrize("via", [SplitVia.SHARED, SplitVia.NIXL])
async def test_both_legs_of_a_split_request_are_the_tenants(files: KeyFiles, via: SplitVia) -> None:
    """Prefill and decode have one salt and one scope; what the router says of the transfer stands beside."""
    async with scripted(answer(COMPUTED)) as p, scripted(answer(GOOD)) as d:
        first = engine_at(p.port, "p")
        first.role = Role.PREFILL
        async with path_to([first, engine_at(d.port, "d")], via=via) as path:
            path.flow.parts.tenancy.table = table(files)
            text = await ask(path.port, by("shop"))
            event = await path.finished()
    assert text.endswith(GOOD)
    assert event.split == "split"
    (one,), (two,) = p.bodies, d.bodies
    assert scope_at(one) == scope_at(two) == ("shop", json.loads(one)["cache_salt"])
    prefill, decode = (json.loads(body)["kv_transfer_params"] for body in (one, two))
    if via is SplitVia.SHARED:
        assert prefill == {"anbar": {"v": 1, "scope": "shop", "store": "always"}}
        more = {"expect_tokens": 5, "wait_ms": 1000}
        assert decode == {"anbar": {"v": 1, "scope": "shop", "store": "auto", **more}}
    else:
        assert prefill["do_remote_decode"] is True
        assert {name: decode[name] for name in WHERE} == WHERE


async def test_what_is_never_stored_is_not_split_through_the_store(files: KeyFiles) -> None:
    """The scope's rule holds: its prompts are computed where they are answered."""
    async with scripted(answer(COMPUTED)) as p, scripted(answer(GOOD)) as d:
        first = engine_at(p.port, "p")
        first.role = Role.PREFILL
        async with path_to([first, engine_at(d.port, "d")], via=SplitVia.SHARED) as path:
            path.flow.parts.tenancy.table = table(files)
            await ask(path.port, by("bank"))
            event = await path.finished()
    assert (event.split, p.bodies, len(d.bodies)) == ("unfit", [], 1)


async def test_the_engine_that_goes_on_is_told_too(files: KeyFiles) -> None:
    """A stream whose engine is lost: the rest is asked for with the same salt and scope."""

    def chunk(text: str, finish: str | None) -> bytes:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
        head = {"id": "c", "object": "text_completion", "created": 7, "model": "m", "choices": [choice]}
        return b"data: " + json.dumps(head).encode() + b"\n\n"

    async def lost(connection: Connection) -> None:
        if b"/tokenize" in connection.head:
            await answer(b'{"tokens": [31], "count": 1, "max_model_len": 1000}')(connection)
            return
        await connection.send(SSE)
        await connection.send_chunk(chunk("a", None))
        connection.writer.transport.abort()

    async def goes_on(connection: Connection) -> None:
        if b"/tokenize" in connection.head:
            await answer(b'{"tokens": [31], "count": 1, "max_model_len": 1000}')(connection)
            return
        await connection.send(SSE)
        await connection.send_chunk(chunk("b", "stop"))
        await connection.send_chunk(b"data: [DONE]\n\n")
        await connection.send(END)

    body = b'{"model": "m", "prompt": [1, 2, 3, 4, 5], "max_tokens": 7, "stream": true}'
    async with (
        scripted(lost) as one,
        scripted(goes_on) as two,
        path_to([engine_at(one.port, "a"), engine_at(two.port, "b")]) as path,
    ):
        path.flow.parts.tenancy.table = table(files)
        text = await ask(path.port, by("shop", body))
        event = await path.finished()
    assert text.endswith(b"[DONE]\n\n\r\n0\r\n\r\n")
    assert event.continued
    asked = [body for engine in (one, two) for body in engine.bodies if b"cache_salt" in body]
    assert len(asked) == 2
    assert scope_at(asked[0]) == scope_at(asked[1])


async def test_a_purge_is_noticed(files: KeyFiles) -> None:
    """Salts change while the router runs, by whomever the scope was purged; while the files cannot be read
    they stay, which is said once, and so is the end of it."""
    lines: list[str] = []
    events: list[Event] = []
    tenancy, config = Tenancy(), TenantsConfig.model_validate(TENANTS)
    watch = TenantWatch(
        KeyFiles(files._directory), tenancy, lambda kind, _: lines.append(kind), events.append
    )
    watch.use(config, await watch.read(config))
    watch.start()
    try:
        for _ in range(3):
            (before,) = _salt(tenancy)
            files.purge("lab")
            await until(lambda before=before: _salt(tenancy) != [before])
        secret = files._directory / "salt.secret"
        secret.chmod(0o644)
        await until(lambda: lines == ["tenant_keys_failing"] or files.purge("other") is None)
        (before,) = _salt(tenancy)
        files.purge("lab")
        secret.chmod(0o600)
        await until(lambda: _salt(tenancy) != [before])
        assert lines == ["tenant_keys_failing", "tenant_keys_work"]
    finally:
        await watch.stop()
    assert events == []


def _salt(tenancy: Tenancy) -> list[str]:
    assert tenancy.table is not None
    return salts(tenancy.table, b"ada")


async def test_keys_that_cannot_be_read_are_a_wrong_configuration(files: KeyFiles) -> None:
    """At the start and at a reload: refused, with the file's name."""
    files.secret()
    (files._directory / "salt.secret").chmod(0o644)
    watch = TenantWatch(files, Tenancy(), lambda *_: None, lambda _: None)
    with pytest.raises(ConfigError, match=r"tenants: .*salt\.secret can be read by others"):
        await watch.read(TenantsConfig())
