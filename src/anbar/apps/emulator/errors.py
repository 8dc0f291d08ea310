"""vLLM's refusals: their three shapes, and how they are worded.

Source: vLLM 0.32 `entrypoints/serve/exception_handling/` and `entrypoints/serve/middleware/authenticate.py`;
shapes and texts were compared with what those handlers print.
"""

from collections.abc import Mapping

Json = Mapping[str, object]


class ApiError(Exception):
    """A refusal: status, `error.type`, `error.message`, `error.param`."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> Json:
        """vLLM's `ErrorResponse`."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}


class LateError(ApiError):
    """A refusal that vLLM's front end does not make: when the request streams, it comes as an event of a
    stream that has begun."""

    streams = False
    """Whether it does."""


class Unauthorized(ApiError):
    """The key is wrong: vLLM's middleware answers without its usual shape."""

    def body(self) -> Json:
        return {"error": self.message}


class FrameworkError(ApiError):
    """What the web framework refuses before vLLM sees it: unknown paths, bodies that it cannot read."""

    def body(self) -> Json:
        return {"detail": self.message}


def invalid(message: str, param: str | None) -> ApiError:
    """A body that does not fit the fields' types."""
    return ApiError(f"1 validation error:\n  {message}", kind="Bad Request", param=param)


def refused(message: str, param: str, value: object = None) -> ApiError:
    """A value that vLLM itself refuses; it repeats parameter and value behind its sentence."""
    shown = f"parameter={param}" if value is None else f"parameter={param}, value={value}"
    return ApiError(f"{message} ({shown})", param=param)


def refused_late(message: str, param: str, value: object = None) -> LateError:
    """As `refused`, by the engine's client."""
    error = refused(message, param, value)
    return LateError(error.message, param=param)


def failed() -> ApiError:
    """An answer that broke off inside the engine."""
    return ApiError("Internal server error", status=500, kind="InternalServerError")
