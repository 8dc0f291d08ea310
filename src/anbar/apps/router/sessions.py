"""Which session a request belongs to, as far as the client says."""

from collections.abc import Mapping
from hashlib import blake2b

from anbar.adapters.http.message import Request


def session_of(request: Request, body: Mapping[str, object], header: bytes) -> str:
    """A digest of the header's value, else of the body's `user`; "" when neither is there. The value itself,
    which may be somebody's name, goes no further."""
    value = request.header(header)
    if not value:
        user = body.get("user")
        value = user.encode("utf-8", "surrogatepass") if isinstance(user, str) else b""
    return blake2b(value, digest_size=16).hexdigest() if value else ""
