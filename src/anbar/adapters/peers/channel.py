"""One connection between two routers, which carries whole messages.

A frame is its length in four bytes and the message. On a Unix socket, in a directory that only the routers'
user may enter, that is all. On TCP both sides first prove that they know the secret (HMAC-SHA256 over a
random number of each side), and every frame carries a code by a key of this connection and of its direction,
counted, so that nobody on the way can add, change, drop or repeat one. Nothing is encrypted.
"""

import asyncio
import hashlib
import hmac
import secrets

from anbar.core.errors import WireError

NONCE_BYTES = 32
MAC_BYTES = 16
SMALL_BYTES = 1024 * 1024
"""Longest message of which nobody expects more."""
LARGE_BYTES = 256 * 1024 * 1024
"""Longest message at all: a snapshot of ten million blocks."""
HANDSHAKE_S = 10.0


class Seal:
    """Codes of the frames of one direction."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def code(self, message: bytes) -> bytes:
        """Of the next message."""
        self._count += 1
        digest = hashlib.blake2b(key=self._key, digest_size=MAC_BYTES)
        digest.update(self._count.to_bytes(8, "little"))
        digest.update(message)
        return digest.digest()


class Channel:
    """Messages over a stream. One task receives at a time; `send` never waits."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ours: Seal | None = None
        self._theirs: Seal | None = None

    @property
    def num_waiting_bytes(self) -> int:
        """Sent, and not taken by the system yet."""
        return self._writer.transport.get_write_buffer_size()

    def send(self, message: bytes) -> None:
        """Send a message as soon as may be; a connection that is lost is noticed when receiving."""
        code = self._ours.code(message) if self._ours is not None else b""
        self._writer.write(len(message).to_bytes(4, "little") + code + message)

    async def drained(self) -> None:
        """Until little waits to be sent. Raises OSError when the connection is lost."""
        await self._writer.drain()

    async def receive(self, max_bytes: int = SMALL_BYTES) -> bytes:
        """The next message. Raises OSError or EOFError when the connection is lost, WireError when the other
        side does not keep to the rules."""
        length = int.from_bytes(await self._reader.readexactly(4), "little")
        if length > max_bytes:
            raise WireError(f"a peer sends {length} bytes, more than {max_bytes}")
        code = await self._reader.readexactly(MAC_BYTES) if self._theirs is not None else b""
        message = await self._reader.readexactly(length)
        if self._theirs is not None and not hmac.compare_digest(self._theirs.code(message), code):
            raise WireError("a peer's message was not sealed by who has proved to know the secret")
        return message

    def close(self) -> None:
        """End the connection; what was sent is still delivered where that is possible."""
        self._writer.close()

    def cut(self) -> None:
        """End the connection at once."""
        self._writer.transport.abort()

    async def prove_as_client(self, secret: bytes) -> None:
        """Both sides prove themselves, the one that has dialled first: who only listens in or tries gets
        nothing to guess the secret by. Raises as `receive`."""
        theirs = await self._reader.readexactly(NONCE_BYTES)
        ours = secrets.token_bytes(NONCE_BYTES)
        nonces = theirs + ours
        self._writer.write(ours + _proof(secret, b"client", nonces))
        try:
            proof = await self._reader.readexactly(32)
        except EOFError as error:
            raise WireError("a peer ends the connection: it has another secret") from error
        if not hmac.compare_digest(proof, _proof(secret, b"server", nonces)):
            raise WireError("a peer does not know the secret")
        self._ours = Seal(_proof(secret, b"to server", nonces))
        self._theirs = Seal(_proof(secret, b"to client", nonces))

    async def prove_as_server(self, secret: bytes) -> None:
        """The other half of `prove_as_client`."""
        ours = secrets.token_bytes(NONCE_BYTES)
        self._writer.write(ours)
        theirs = await self._reader.readexactly(NONCE_BYTES)
        nonces = ours + theirs
        proof = await self._reader.readexactly(32)
        if not hmac.compare_digest(proof, _proof(secret, b"client", nonces)):
            raise WireError("a peer does not know the secret")
        self._writer.write(_proof(secret, b"server", nonces))
        self._ours = Seal(_proof(secret, b"to client", nonces))
        self._theirs = Seal(_proof(secret, b"to server", nonces))


def _proof(secret: bytes, role: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, b"anbar peers 1 " + role + b"\0" + nonces, "sha256")
