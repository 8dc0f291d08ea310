"""Checks of engines that run already and of the store. Nothing is changed there; one token is generated."""

import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from anbar.apps.doctor.finding import Finding, fail, ok, warn
from anbar.apps.engine_key import engine_key
from anbar.apps.interpreter import SUPPORTED_VLLM
from anbar.config.models import EngineConfig
from anbar.core.errors import ConfigError

_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 60.0
_MAX_BYTES = 16 * 1024**2
"""No page of vLLM's has so many; what is no vLLM may never end."""


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    body: Any


def check_engine(engine: EngineConfig, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Health, version, models, KV events and usage details of an attached engine. `environ` may hold its
    API key."""
    name = f"engine {engine.name}"
    try:
        key = engine_key(engine, environ)
    except ConfigError as error:
        fix = "correct engines[].api_key_env or api_key_file, or what they name"
        yield fail(name, str(error).removeprefix("engines: "), fix)
        return
    try:
        yield from _check(name, _Client(str(engine.url), key), engine)
    except http.client.HTTPException as error:
        what = f"what answers at {engine.url} does not speak HTTP ({type(error).__name__})"
        yield fail(name, what, "correct engines[].url: the address of vLLM's API server is meant")
    except (OSError, UnicodeError) as error:
        why = str(error) or type(error).__name__
        fix = "start it, or correct engines[].url; a firewall may be in between"
        yield fail(name, f"{engine.url} cannot be reached: {why}", fix)


def _check(name: str, client: "_Client", engine: EngineConfig) -> Iterator[Finding]:
    health = client.get("/health")
    if health.status == 404:
        fix = "correct engines[].url: the address of vLLM's API server is meant, without /v1"
        yield fail(name, "it has no /health, so it is no vLLM, or only a path of it", fix)
        return
    if health.status != 200:
        yield fail(name, f"/health answers {health.status}", "see the engine's own log")
        return
    yield _version(name, client.get("/version"))
    models = client.get("/v1/models")
    if models.status in (401, 403):
        yield fail(name, "it asks for an API key", "set engines[].api_key_env or api_key_file")
        return
    names = [str(model.get("id")) for model in _list(models.body, "data")]
    if not names:
        fix = "correct engines[].url: is it vLLM's API server?"
        yield fail(name, f"/v1/models answers {models.status} and names no model", fix)
        return
    yield ok(name, f"serves {', '.join(names)}")
    yield _events(name, client, engine)
    yield _usage(name, client, names[0])


def _version(name: str, reply: _Reply) -> Finding:
    found = reply.body.get("version") if isinstance(reply.body, Mapping) else None
    if reply.status != 200 or not isinstance(found, str):
        fix = f"Anbar is tested with vLLM {SUPPORTED_VLLM}.*"
        return warn(name, "it does not tell its version", fix)
    if not found.startswith(f"{SUPPORTED_VLLM}."):
        fix = f"cache-aware routing is tested with vLLM {SUPPORTED_VLLM}.*; by load it works with any"
        return warn(name, f"vLLM {found}", fix)
    return ok(name, f"vLLM {found}")


def _events(name: str, client: "_Client", engine: EngineConfig) -> Finding:
    fix = (
        'start it with --kv-events-config \'{"enable_kv_cache_events":true,"publisher":"zmq",'
        '"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}\'; without, routing is by load'
    )
    configured = [address for address in (engine.events, engine.replay) if address is not None]
    for address in configured:
        problem = _zmq_problem(address)
        if problem is not None:
            what = f"no KV events can come from {address}: {problem}; routing is by load until they do"
            return fail(name, what, "correct engines[].events and replay; a firewall may be in between")
    if engine.events is not None:
        return ok(name, f"KV events at {' and '.join(configured)}")
    reply = client.get("/kv_event_sources")
    if reply.status != 200 or not reply.body:
        return warn(name, "it publishes no KV events", fix)
    return ok(name, "it names its KV events")


def _zmq_problem(address: str) -> str | None:
    """Why nothing that speaks ZMTP listens there: it greets whoever connects (RFC 23, "Greeting")."""
    try:
        with _connected(address) as connection:
            greeting = connection.recv(1)
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return None if greeting == b"\xff" else "what listens there does not speak ZMTP"


def _connected(address: str) -> socket.socket:
    if address.startswith("ipc://"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_TIMEOUT_S)
        connection.connect(address.removeprefix("ipc://"))
        return connection
    parts = urlsplit(address)
    return socket.create_connection((parts.hostname or "", parts.port or 0), _TIMEOUT_S)


def _usage(name: str, client: "_Client", model: str) -> Finding:
    reply = client.post("/v1/completions", {"model": model, "prompt": "a", "max_tokens": 1})
    usage = reply.body.get("usage") if isinstance(reply.body, Mapping) else None
    if reply.status != 200 or not isinstance(usage, Mapping):
        return warn(name, f"a completion of one token answers {reply.status}", "see the engine's own log")
    if usage.get("prompt_tokens_details") is None:
        fix = "start it with --enable-prompt-tokens-details, or the router cannot check its own predictions"
        return warn(name, "usage carries no cached_tokens", fix)
    return ok(name, "usage carries cached_tokens")


def _list(body: object, key: str) -> list[Mapping[str, Any]]:
    found = body.get(key) if isinstance(body, Mapping) else None
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


class _Client:
    """One request at a time, with deadlines. Raises OSError or HTTPException."""

    def __init__(self, url: str, key: str | None) -> None:
        self._parts = urlsplit(url)
        self._headers = {"authorization": f"Bearer {key}"} if key is not None else {}

    def get(self, path: str) -> _Reply:
        return self._request("GET", path, None, _TIMEOUT_S)

    def post(self, path: str, body: Mapping[str, Any]) -> _Reply:
        return self._request("POST", path, json.dumps(body), _ANSWER_TIMEOUT_S)

    def _request(self, method: str, path: str, body: str | None, timeout_s: float) -> _Reply:
        host, port = self._parts.hostname or "", self._parts.port
        connection: http.client.HTTPConnection
        if self._parts.scheme == "https":
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        headers = {**self._headers, "content-type": "application/json"}
        try:
            connection.request(method, self._parts.path.rstrip("/") + path, body, headers)
            reply = connection.getresponse()
            text = reply.read(_MAX_BYTES)
        finally:
            connection.close()
        try:
            return _Reply(reply.status, json.loads(text))
        except ValueError:
            return _Reply(reply.status, None)
