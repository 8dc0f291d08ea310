"""A request as an engine gets it: the client's bytes, but for what the router rewrites in place.

A stream is asked for its usage, which the self-check needs; the event that brings it is taken out again. An
engine that does not know `stream_options` refuses such a request: it is given the client's own bytes
then, and from then on. That is found out once for each engine, so that no client's error is asked twice
for ever."""

from anbar.adapters.http.message import Request, render_headers
from anbar.adapters.http.openai import ApiRequest, Endpoint
from anbar.adapters.http.upstream import Reply
from anbar.adapters.http.usage_event import UsageFilter, asking_for_usage
from anbar.apps.router.engine import Engine, UsageOption
from anbar.core.errors import UpstreamTimeout

_REFUSALS = (400, 422)
"""What engines answer to a field that they do not take."""


class OutOfTime(UpstreamTimeout):
    """The request's own time was up before the engine's: nothing is held against the engine."""


async def ask(
    engine: Engine, request: Request, api: ApiRequest, head: bytes, left_s: float
) -> tuple[Reply, UsageFilter | None]:
    """Send a request whose own header lines are `head`; returns when the answer's body has begun or
    ended, with what its body has to pass on its way to the client. Raises UpstreamError, at the latest when
    nothing came for as long as the engine may take; OutOfTime when nothing came in the `left_s` of the
    request, and those were less."""
    asks = api.stream and not api.wants_usage and engine.usage is not UsageOption.REFUSED
    body = asking_for_usage(request.body, api.body) if asks else request.body
    reply = await _answer(engine, _render(engine, request.target, head, len(body)), body, left_s)
    if not asks:
        return reply, None
    if reply.status == 200:
        engine.usage = UsageOption.TAKEN
        return reply, UsageFilter() if is_event_stream(reply) else None
    if engine.usage is UsageOption.UNTRIED and reply.status in _REFUSALS:
        reply.close()
        own = request.body
        reply = await _answer(engine, _render(engine, request.target, head, len(own)), own, left_s)
        if reply.status == 200:
            engine.usage = UsageOption.REFUSED
    return reply, None


async def ask_for_rest(engine: Engine, head: bytes, body: bytes, left_s: float) -> Reply:
    """Send a completion of the router's own making, with header lines of the client's. Raises
    UpstreamError, as `ask` does."""
    return await ask_plainly(engine, Endpoint.COMPLETIONS.value.encode(), head, body, left_s)


async def ask_plainly(engine: Engine, target: bytes, head: bytes, body: bytes, left_s: float) -> Reply:
    """Send `body` as it is. Raises UpstreamError, as `ask` does."""
    return await _answer(engine, _render(engine, target, head, len(body)), body, left_s)


async def _answer(engine: Engine, head: bytes, body: bytes, left_s: float) -> Reply:
    limit_s = engine.pool.limits.first_byte_timeout_s
    try:
        return await engine.pool.ask(head, body, min(limit_s, max(0.0, left_s)))
    except UpstreamTimeout as error:
        if limit_s < left_s:
            raise
        raise OutOfTime("the engine sent no byte of an answer within router.total_timeout_s") from error


def is_event_stream(reply: Reply) -> bool:
    return b"text/event-stream" in reply.content_type


def _render(engine: Engine, target: bytes, head: bytes, num_body_bytes: int) -> bytes:
    """The head of the request as this engine gets it."""
    end = engine.pool.endpoint
    own = render_headers(engine.auth) if engine.auth else b""
    return b"POST %b%b HTTP/1.1\r\nhost: %b\r\ncontent-length: %d\r\n%b%b\r\n" % (
        end.prefix,
        target,
        end.host_header,
        num_body_bytes,
        own,
        head,
    )
