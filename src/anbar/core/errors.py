"""The error tree. Adapters map foreign errors into it with `raise ... from`.

AnbarError
├── ConfigError        anbar.yaml or an option is wrong: names file, key, value, what is allowed
├── RequestError       the client's fault: a 4xx in OpenAI's error shape
├── UpstreamError      an engine failed before its first byte: the next engine may be tried
│   ├── UpstreamUnreachable   connect refused, reset, closed
│   └── UpstreamTimeout       no first byte within the limit
├── UpstreamBroken     an engine failed after its first byte
│   ├── UpstreamStalled       it sent nothing for too long
│   └── RouterStopped         the router ends and reads no further
├── NoEngine           nothing can serve the request now: 503
├── WireError          an engine's event or probe answer cannot be understood: names the part
├── LookFailed         where engines are listed could not be read, or names none
├── StackError         a part of the stack did not start or died
├── MeasureError       an engine cannot be measured as it is
├── StoreError         a store could not be opened (calls on an open store report outcomes instead)
└── KeyFileError       a file with a secret of tenants is there and cannot be used, or cannot be made
"""

from anbar.core.look import LookFailure


class AnbarError(Exception):
    """Base of all errors that Anbar raises on purpose; its text is fit for a user."""


class ConfigError(AnbarError):
    """A configuration value is unknown or wrong."""


class RequestError(AnbarError):
    """The client sent something that cannot be served; nothing reached an engine.

    `status` is the HTTP status, `kind` OpenAI's `error.type`, `code` OpenAI's `error.code`,
    `param` the field at fault, `retry_after_s` when to try again.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s


class UpstreamError(AnbarError):
    """An engine failed before the first byte of its answer."""


class UpstreamUnreachable(UpstreamError):
    """The connection was refused, reset or closed before an answer began."""


class UpstreamTimeout(UpstreamError):
    """No answer began within the limit."""


class UpstreamBroken(AnbarError):
    """An engine failed after the first byte of its answer. `kind` and `code` are OpenAI's `error.type` and
    `error.code` in the stream's last event."""

    kind = "upstream_error"
    code = "engine_failed"


class UpstreamStalled(UpstreamBroken):
    """An engine sent nothing for too long in the middle of its answer."""


class RouterStopped(UpstreamBroken):
    """The router ends, and nobody reads the rest of the answer."""

    kind = "service_unavailable"
    code = "router_stopped"

    def __init__(self) -> None:
        super().__init__("The router was stopped before this answer was complete. Try again.")


class NoEngine(AnbarError):
    """No engine can serve this request now."""


class WireError(AnbarError):
    """A KV event or a probe's answer that cannot be understood; the text says which part."""


class LookFailed(AnbarError):
    """A look at where engines are listed has told of none."""

    def __init__(self, failure: LookFailure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class StackError(AnbarError):
    """A part of the stack did not start, or died."""


class MeasureError(AnbarError):
    """An engine cannot be measured as it is; the text says why and what would help."""


class StoreError(AnbarError):
    """A store could not be opened."""


class KeyFileError(AnbarError):
    """A file with a secret is there and cannot be used, or cannot be made; the text never shows what is in
    it."""
