"""The `cache_salt` of a scope: what keeps its KV from everybody else's inside an engine.

An engine reuses a block only for requests with the same salt, and hashes of salted blocks tell nothing of
those with another. Pure.
"""

import hmac
from base64 import urlsafe_b64encode

SALT_CHARS = 43


def cache_salt(secret: bytes, scope: str, epoch: bytes, own: str = "") -> str:
    """43 of A-Z a-z 0-9 - _, equal wherever the four are: HMAC-SHA256 with `secret` of the scope's name, of
    what a purge changes, and of the salt that the client itself has sent."""
    parts = (scope.encode(), epoch, own.encode("utf-8", "surrogatepass"))
    message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    digest = hmac.digest(secret, b"anbar cache_salt v1\n" + message, "sha256")
    return urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")
