"""`GET /openapi.json`: the router's HTTP interface as OpenAPI 3.1, from the types that its endpoints read and
write. `docs/reference/openapi.json` is the same document."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec

from anbar import __version__
from anbar.adapters.http.openai import Endpoint
from anbar.adapters.http.schemas import REF, Schema, body_of, body_schemas, components
from anbar.apps.router.admin_calls import ADMIN_CALLS
from anbar.apps.router.discovery_page import DiscoveryPage
from anbar.apps.router.explain_page import Explanations, LastRequests
from anbar.apps.router.readiness import ReadyPage
from anbar.apps.router.reload import ReloadState

JSON, TEXT, EVENTS = "application/json", "text/plain", "text/event-stream"
_OBJECT: Schema = {"type": "object"}
_STRING: Schema = {"type": "string"}


def _ref(name: str) -> Schema:
    return {"$ref": REF.format(name=name)}


@dataclass(frozen=True, slots=True)
class Call:
    """One method of one path."""

    what: str
    answers: Mapping[str, Schema] = field(default_factory=lambda: {JSON: _OBJECT})
    """By media type; of status 200."""
    body: str = ""
    """The name of its schema; "": none is read."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that change what is done, and how."""
    other_statuses: Mapping[str, str] = field(default_factory=dict)


_GENERATES: dict[str, Any] = {
    "answers": {JSON: _OBJECT, EVENTS: _STRING},
    "headers": {
        "idempotency-key": "1 to 255 bytes: a repetition gets the first one's answer; without `stream`",
        "x-anbar-explain": "1: why the engine was chosen is in the header of the same name",
    },
    "other_statuses": {
        "429": "too much waits, or every engine has asked for a pause: see Retry-After",
        "502": "no engine answered",
        "503": "no engine is ready",
        "504": "no engine answered in time",
    },
}

PUBLIC_CALLS: Mapping[str, Call] = {
    "POST /v1/chat/completions": Call(
        "the next message of a chat, from an engine", body=body_of(Endpoint.CHAT), **_GENERATES
    ),
    "POST /v1/completions": Call(
        "how a text goes on, from an engine", body=body_of(Endpoint.COMPLETIONS), **_GENERATES
    ),
    "GET /v1/models": Call("the models of the ready engines"),
    "GET /v1/models/{model}": Call("one of them"),
    "GET /health": Call("200 while the process lives"),
    "GET /ready": Call(
        "whether every model that was served has an engine that may get requests",
        {JSON: _ref("ReadyPage")},
        other_statuses={"503": "it has not, or the router drains"},
    ),
    "GET /metrics": Call("metrics for Prometheus", {TEXT: _STRING}),
    "GET /version": Call("Anbar's version"),
    "GET /openapi.json": Call("this document"),
}

_ADMIN_ANSWERS: Mapping[str, Mapping[str, Schema]] = {
    "GET /admin/explain": {JSON: _ref("LastRequests"), TEXT: _STRING},
    "GET /admin/explain/{request_id}": {JSON: _ref("Explanations"), TEXT: _STRING},
    "GET /admin/config": {JSON: _ref("ReloadState")},
    "GET /admin/discovery": {JSON: _ref("DiscoveryPage")},
}

_ERROR: Schema = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": _STRING,
                "type": _STRING,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "integer", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}


def calls() -> dict[str, Call]:
    """Every call that is answered, by `METHOD /path`."""
    admin = {
        name: Call(what, _ADMIN_ANSWERS.get(name, {JSON: _OBJECT}), other_statuses={"403": "not from here"})
        for name, what in ADMIN_CALLS.items()
    }
    return {**PUBLIC_CALLS, **admin}


def document() -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for name, call in calls().items():
        method, path = name.split()
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, call)
    pages = components((Explanations, LastRequests, ReloadState, DiscoveryPage, ReadyPage))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Anbar router", "version": __version__},
        "paths": paths,
        "components": {"schemas": {**body_schemas(), **pages, "Error": _ERROR}},
    }


@cache
def rendered() -> bytes:
    """The document as JSON."""
    return msgspec.json.encode(document())


def _operation(method: str, path: str, call: Call) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": call.what, "parameters": [*_parameters(path, call)]}
    if call.body:
        content = {JSON: {"schema": _ref(call.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    answers = {kind: {"schema": schema} for kind, schema in call.answers.items()}
    error = {JSON: {"schema": _ref("Error")}}
    operation["responses"] = {
        "200": {"description": "done", "content": answers},
        "4XX": {"description": "the request is wrong, or not for here", "content": error},
    }
    for status, what in call.other_statuses.items():
        is_page = path == "/ready"  # which is the same page whatever it says
        operation["responses"][status] = {"description": what, "content": answers if is_page else error}
    return operation


def _parameters(path: str, call: Call) -> list[dict[str, Any]]:
    found = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": _STRING}
        for part in path.split("/")
        if part.startswith("{")
    ]
    if path.startswith("/admin/explain"):
        found.append({"name": "format", "in": "query", "schema": {"enum": ["json", "text"]}})
    headers = {"x-request-id": "comes back, and stands in the log", **call.headers}
    found += [
        {"name": name, "in": "header", "description": what, "schema": _STRING}
        for name, what in headers.items()
    ]
    return found
