"""Which headers cross the router, and which it adds."""

import os
import re
import secrets
from collections.abc import Sequence
from functools import lru_cache
from random import Random

from anbar.adapters.http.message import HOP_BY_HOP, Header, Request, end_to_end, render_headers
from anbar.apps.router.record import Record
from anbar.core.errors import RequestError
from anbar.core.ids import RequestId

CLIENT_SECRETS = (b"authorization", b"cookie", b"x-api-key", b"api-key")
"""Headers by which clients show who they are."""

_REQUEST_DROPPED = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"x-request-id", *CLIENT_SECRETS}
"""Hop-by-hop, rewritten here, or a client's secrets: these end at the router."""

_ANSWER_DROPPED = HOP_BY_HOP | {b"content-length", b"x-request-id"}
_HEADS = 128
"""Clients and engines send the same headers with most of their messages: what becomes of so many of these is
remembered."""

_ids = Random(secrets.randbits(128))
"""Ids are to be unique, not secret; asking the system for each costs as much as a write to a socket."""
os.register_at_fork(after_in_child=_ids.seed)
_SANE_ID = re.compile(rb"[A-Za-z0-9._:+/=@-]{1,128}")


def request_id(headers: Sequence[Header]) -> RequestId:
    """The client's `x-request-id` if it is one that can stand in a log line, else a new one."""
    for name, value in headers:
        if name == b"x-request-id":
            if _SANE_ID.fullmatch(value):
                return RequestId(value.decode())
            break
    return RequestId(f"{_ids.getrandbits(128):032x}")


def check_content_type(request: Request) -> None:
    """Refuse a body that is not called JSON, by vLLM's own rule (`validate_json_request`) and status."""
    given = request.header(b"content-type")
    if given is None or given.partition(b";")[0].lower() != b"application/json":
        raise RequestError(
            "The body must be JSON and say so: send the header `Content-Type: application/json`.",
            code="unsupported_media_type",
        )


def id_headers(rid: RequestId) -> tuple[Header, Header]:
    value = rid.encode()
    return (b"x-request-id", value), (b"x-anbar-request-id", value)


def forwarded(request: Request, rid: RequestId) -> bytes:
    """Rendered header lines that every engine gets for this request, without the body's framing."""
    return b"%bx-request-id: %b\r\n" % (_asked(request.headers), rid.encode())


def answer_headers(headers: tuple[Header, ...], record: Record, explanation: Sequence[Header] = ()) -> bytes:
    """Rendered header lines of an engine's answer, with the router's own added."""
    own = [*id_headers(record.request_id), (b"x-anbar-engine", (record.engine or "").encode())]
    if record.predicted_cached_tokens is not None:
        own.append((b"x-anbar-cached-tokens-predicted", b"%d" % record.predicted_cached_tokens))
    own.append((b"x-anbar-policy", record.policy.encode()))
    if record.degraded:
        own.append((b"x-anbar-degraded", record.degraded.encode()))
    own += explanation
    return _answered(headers) + render_headers(own)


@lru_cache(_HEADS)
def _asked(headers: tuple[Header, ...]) -> bytes:
    return render_headers(end_to_end(headers, _REQUEST_DROPPED))


@lru_cache(_HEADS)
def _answered(headers: tuple[Header, ...]) -> bytes:
    return render_headers(end_to_end(headers, _ANSWER_DROPPED))
