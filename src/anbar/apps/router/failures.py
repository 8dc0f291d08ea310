"""The router's own 5xx answers, in OpenAI's error shape."""

import math
from collections.abc import Sequence

from anbar.adapters.http.message import Answer, Header, error_answer
from anbar.core.errors import NoEngine, RequestError, RouterStopped, UpstreamError, UpstreamTimeout

RETRY_AFTER_S = 1
"""What clients are told when no engine is ready: the next probes come within a second."""


def no_engine(error: NoEngine, headers: Sequence[Header]) -> Answer:
    """503: nothing can serve this now."""
    shape = RequestError(str(error), status=503, kind="service_unavailable", code="no_engine_ready")
    return error_answer(shape, (*headers, (b"retry-after", b"%d" % RETRY_AFTER_S)))


def overloaded(seconds: float) -> RequestError:
    """429: too much waits already; `seconds` from now a request like this one would be taken on."""
    text = "Too many requests wait for their answers to begin. Try again later: Retry-After says when."
    return _later(text, "overloaded", seconds)


def at_rest(seconds: float) -> RequestError:
    """429: every engine that could serve has asked for a pause, and the first is over in `seconds`."""
    return _later("Every engine that serves this model has asked for a pause.", "engines_busy", seconds)


def upstream_failed(error: UpstreamError, headers: Sequence[Header]) -> Answer:
    """502 or 504: every engine that was tried failed before the first byte of an answer."""
    if isinstance(error, UpstreamTimeout):
        shape = RequestError(str(error), status=504, kind="upstream_error", code="engine_timeout")
    else:
        shape = RequestError(str(error), status=502, kind="upstream_error", code="engine_unreachable")
    return error_answer(shape, headers)


def stopped(headers: Sequence[Header]) -> Answer:
    """503: the router ends before the answer began."""
    error = RouterStopped()
    shape = RequestError(str(error), status=503, kind=error.kind, code=error.code)
    return error_answer(shape, (*headers, (b"retry-after", b"%d" % RETRY_AFTER_S)))


def internal(headers: Sequence[Header]) -> Answer:
    """500: a defect of the router. What happened is in its log, not in the answer."""
    shape = RequestError("The router failed.", status=500, kind="server_error", code="internal_error")
    return error_answer(shape, headers)


def _later(text: str, code: str, seconds: float) -> RequestError:
    kind, retry_after_s = "rate_limit_exceeded", max(1, math.ceil(seconds))
    return RequestError(text, status=429, kind=kind, code=code, retry_after_s=retry_after_s)
