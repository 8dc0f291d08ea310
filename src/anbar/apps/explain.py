"""Asks a router on this machine why a request went where it went."""

from urllib.parse import quote

import msgspec

from anbar.adapters.http.fetch import fetch
from anbar.adapters.http.limits import UpstreamLimits
from anbar.adapters.http.upstream import UpstreamPool, parse_endpoint
from anbar.core.errors import ConfigError, StackError, UpstreamError

_LIMIT_S = 10.0


class _Error(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Error


async def explanation(url: str, request_id: str | None, as_json: bool) -> str:
    """What the router at `url` says of one request, or of the last ones. Raises StackError with its own words
    when it does not know it, or when there is no router, and ConfigError for what is no address."""
    if request_id == "":
        raise ConfigError("command line ID: is empty; leave it out for the last requests")
    limits = UpstreamLimits(
        connect_timeout_s=_LIMIT_S, first_byte_timeout_s=_LIMIT_S, idle_timeout_s=_LIMIT_S
    )
    try:
        pool = UpstreamPool(parse_endpoint(url), limits)
    except ValueError as error:
        raise ConfigError(f"command line --url: {error}") from error
    path = "/admin/explain" if request_id is None else f"/admin/explain/{quote(request_id, safe='')}"
    try:
        answer = await fetch(pool, f"{path}?format={'json' if as_json else 'text'}", timeout_s=_LIMIT_S)
    except UpstreamError as error:
        raise StackError(f"no router answers at {url}: start one, or name it with --url") from error
    finally:
        pool.close()
    text = answer.body.decode("utf-8", "replace")
    if answer.status != 200:
        no_router = f"what answers is no Anbar router: it gave {path} status {answer.status}"
        raise StackError(f"{url}: {_message(answer.body) or no_router}")
    return text if text.endswith("\n") else text + "\n"


def _message(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Refusal).error.message
    except msgspec.DecodeError:
        return ""
