"""From bytes to requests, without sockets: the parser, its limits, and what it refuses."""

import re
from collections import deque
from collections.abc import Sequence
from enum import Enum

import httptools

from anbar.adapters.http.known_head import KnownHead, head_of
from anbar.adapters.http.limits import ServerLimits
from anbar.adapters.http.message import Header, Request, render_headers
from anbar.core.errors import RequestError

_ABSOLUTE_FORM = re.compile(rb"https?://([^/?#]+)(.*)", re.IGNORECASE | re.DOTALL)
HTTP2_PREFACE = b"PRI * HTTP/2"
_UPGRADE_HEADERS = frozenset((b"upgrade", b"connection", b"http2-settings"))

_LENGTH = b"content-length"
_OWN_EACH_TIME = frozenset((b"transfer-encoding", b"expect", b"upgrade"))
"""Headers with which a request is read by the parser, however well its head is known."""

_OBJECT_BYTES = 1024
"""What a request takes beside its bytes: a thousand tiny ones are a megabyte."""


class Phase(Enum):
    """What the reader waits for."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"


class Incoming:
    """A request while its bytes arrive."""

    __slots__ = (
        "body",
        "expects_continue",
        "head_bytes",
        "header_bytes",
        "headers",
        "http_1_0",
        "in_body",
        "keep_alive",
        "method",
        "num_body_bytes",
        "target",
    )

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.headers: list[Header] = []
        """Of a whole request those that say nothing of its body's length: so all requests with a known head
        have the same."""
        self.head_bytes = 0
        """Bytes that came without completing the head, or since the last of the body: a line that never ends
        is no header yet, and no trailer."""
        self.header_bytes = 0
        self.body: bytes | bytearray = b""
        """Not a list of its pieces: of chunks of two bytes that would take twenty times the body."""
        self.num_body_bytes = 0
        self.in_body = False
        self.keep_alive = False
        self.http_1_0 = False
        self.expects_continue = False

    @property
    def num_bytes(self) -> int:
        """Memory that the request takes, roughly."""
        return _OBJECT_BYTES + len(self.target) + self.header_bytes + self.num_body_bytes

    def again(self, body: bytes) -> "Incoming":
        """Another whole request with this one's head, but for the length of its body."""
        new = Incoming()
        new.method, new.target, new.keep_alive, new.in_body = self.method, self.target, True, True
        new.headers = self.headers
        new.header_bytes = self.header_bytes
        new.body, new.num_body_bytes = body, len(body)
        return new

    def request(self, peer_is_local: bool) -> Request:
        """The complete request as a frozen value."""
        return Request(self.method, self.target, tuple(self.headers), bytes(self.body), peer_is_local)


class RequestReader:
    """Turns what a client sends into requests.

    `ready` holds complete requests in order. `refusal` is set once something was malformed or over a limit;
    nothing after it is read. A pipelined request behind it is lost with the connection, as HTTP allows.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        self._upgrading = False
        self._finished = False
        self._pipelined_bytes = 0
        self._fresh = True
        self._known: tuple[KnownHead, Incoming] | None = None
        """The head of the last request that came whole, and what it means."""
        self.ready: deque[Incoming] = deque()
        self.current: Incoming | None = None
        self.refusal: RequestError | None = None

    @property
    def phase(self) -> Phase:
        if self.current is None:
            return Phase.IDLE
        return Phase.BODY if self.current.in_body else Phase.HEAD

    @property
    def refused_headers(self) -> Sequence[Header]:
        """What was read of the headers of the request that did not become complete."""
        return self.current.headers if self.current is not None else ()

    def refuse_flood(self) -> None:
        """Call while an answer is awaited: refuse what comes when more waits behind it than should. Reading
        goes on, since a client that is not read is not seen leaving."""
        num_bytes = self._pipelined_bytes
        if self.current is not None:
            num_bytes += self.current.num_bytes
        limit = self._limits.pipelined_bytes
        if num_bytes > limit and self.refusal is None:
            self.refusal = RequestError(f"More than {limit} bytes came ahead of an answer.", status=413)
            self.current = None

    def pop(self) -> Incoming | None:
        """The next complete request, if there is one."""
        if not self.ready:
            return None
        incoming = self.ready.popleft()
        self._pipelined_bytes -= incoming.num_bytes
        return incoming

    def feed(self, data: bytes) -> None:
        """Take in what arrived. Never raises: what is wrong becomes `refusal`."""
        if self._finished or self.refusal is not None:
            return
        if self._fresh:
            self._fresh = False
            if data.startswith(HTTP2_PREFACE):
                self.refusal = RequestError("HTTP/2 is not spoken here; use HTTP/1.1.", status=505)
                return
        before = self.current
        if before is None and self._is_known(data):
            return
        num_body_bytes = before.num_body_bytes if before is not None else 0
        try:
            self._parser.feed_data(data)
            if before is None:
                self._learn(data)
            elif before is self.current:
                if before.num_body_bytes > num_body_bytes:
                    before.head_bytes = 0
                else:
                    self._count_head(before, len(data))
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            if self.refusal is None and not self._finished:
                self.refusal = RequestError("The request is not valid HTTP/1.1.")

    def _is_known(self, data: bytes) -> bool:
        """Take in `data` if it is one request like the last. The parser, which is between two requests, need
        not see it."""
        known = self._known
        body = known[0].body(data) if known is not None else None
        if known is None or body is None or len(body) > self._limits.max_body_bytes:
            return False
        self._complete(known[1].again(body))
        return True

    def _learn(self, data: bytes) -> None:
        """The parser has read `data` from the beginning of a request on."""
        if self.current is not None or len(self.ready) != 1:
            return
        incoming = self.ready[0]
        names = [name for name, _ in incoming.headers]
        plain = incoming.keep_alive and not incoming.http_1_0 and _OWN_EACH_TIME.isdisjoint(names)
        head = head_of(data, incoming.num_body_bytes) if plain else None
        if head is not None:
            self._known = head, incoming.again(b"")  # its body is not kept

    def _ignore_upgrade(self, rest: bytes) -> None:
        """An offer to upgrade may be ignored (RFC 9110, 7.8), but the parser stops at one: read the request
        again without the offer."""
        incoming, self.current = self.current, None
        self._upgrading = False
        if incoming is None or incoming.method == b"CONNECT":
            self.refusal = RequestError("CONNECT is not supported.", status=405)
            return
        kept = [header for header in incoming.headers if header[0] not in _UPGRADE_HEADERS]
        if not incoming.keep_alive:
            kept.append((b"connection", b"close"))
        version = b"1.0" if incoming.http_1_0 else b"1.1"
        line = b"%b %b HTTP/%b\r\n" % (incoming.method, incoming.target, version)
        head = b"%b%b\r\n" % (line, render_headers(kept))
        self._parser = httptools.HttpRequestParser(self)
        self.feed(head + rest)

    # Callbacks of the parser. What they raise ends the parse; `refusal` then says why.

    def on_message_begin(self) -> None:
        self.current = Incoming()

    def on_url(self, url: bytes) -> None:
        incoming = self._incoming()
        incoming.target += url
        if len(incoming.target) > self._limits.max_target_bytes:
            self._refuse(f"The request target is longer than {self._limits.max_target_bytes} bytes.", 414)

    def on_header(self, name: bytes, value: bytes) -> None:
        incoming, limits = self._incoming(), self._limits
        incoming.header_bytes += len(name) + len(value) + 4
        # Trailers may be discarded (RFC 9110, 6.5.1) and must not pass for headers, which were checked.
        if not incoming.in_body:
            incoming.headers.append((name.lower(), value))
        if incoming.header_bytes > limits.max_header_bytes:
            self._refuse(f"The headers are longer than {limits.max_header_bytes} bytes.", 431)
        if len(incoming.headers) > limits.max_headers:
            self._refuse(f"The request has more than {limits.max_headers} headers.", 431)

    def on_headers_complete(self) -> None:
        incoming = self._incoming()
        parser = self._parser
        incoming.method = parser.get_method()
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._refuse(f"HTTP/{version} is not spoken here; use HTTP/1.1.", 505)
        incoming.http_1_0 = version == "1.0"
        incoming.keep_alive = parser.should_keep_alive()
        incoming.in_body = True
        self._check_head(incoming)
        if incoming.target[:1] not in (b"/", b"*"):
            _take_origin_form(incoming)
        if parser.should_upgrade():
            self._upgrading = True

    def on_body(self, data: bytes) -> None:
        incoming = self._incoming()
        incoming.num_body_bytes += len(data)
        if incoming.num_body_bytes > self._limits.max_body_bytes:
            self._refuse_body()
        if not incoming.body:
            incoming.body = data
        elif isinstance(incoming.body, bytearray):
            incoming.body += data
        else:
            incoming.body = bytearray(incoming.body + data)

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        incoming = self._incoming()
        self.current = None
        if not incoming.keep_alive:
            self._finished = True
        incoming.headers = [header for header in incoming.headers if header[0] != _LENGTH]
        self._complete(incoming)

    def _complete(self, incoming: Incoming) -> None:
        self._pipelined_bytes += incoming.num_bytes
        self.ready.append(incoming)

    def _incoming(self) -> Incoming:
        assert self.current is not None, "the parser announces each message before its parts"
        return self.current

    def _count_head(self, incoming: Incoming, num_bytes: int) -> None:
        incoming.head_bytes += num_bytes
        limit = self._limits.max_header_bytes
        if incoming.head_bytes > limit + self._limits.max_target_bytes:
            self.refusal = RequestError(f"The headers are longer than {limit} bytes.", status=431)

    def _check_head(self, incoming: Incoming) -> None:
        num_hosts = 0
        for name, value in incoming.headers:
            if name == b"host":
                num_hosts += 1
            elif name == b"content-length":
                if int(value) > self._limits.max_body_bytes:
                    self._refuse_body()
            elif name == b"expect":
                if value.lower() != b"100-continue":
                    self._refuse("Only `Expect: 100-continue` is supported.", 417)
                incoming.expects_continue = not incoming.http_1_0
            elif name == b"transfer-encoding":
                self._check_transfer_encoding(value, incoming.http_1_0)
        if num_hosts > 1 or (num_hosts == 0 and not incoming.http_1_0):
            self._refuse("Exactly one Host header is needed.", 400)

    def _check_transfer_encoding(self, value: bytes, http_1_0: bool) -> None:
        """Chunks only: in what else it may be packed, the parser would hand it on. HTTP/1.0 has no such
        framing, and whoever stands before us may see another one (RFC 9112, 6.1)."""
        if http_1_0:
            self._refuse("Transfer-Encoding needs HTTP/1.1.", 400)
        if value.rstrip(b" ").lower() != b"chunked":  # RFC 9112, 5
            self._refuse("Only `Transfer-Encoding: chunked` is supported.", 400)

    def _refuse_body(self) -> None:
        limit = self._limits.max_body_bytes
        self._refuse(f"The body is longer than {limit} bytes (router.max_body_bytes).", 413)

    def _refuse(self, message: str, status: int) -> None:
        self.refusal = RequestError(message, status=status)
        raise self.refusal


def _take_origin_form(incoming: Incoming) -> None:
    """A target with scheme and host, as proxies get it, has to be accepted, and its host counts in the place
    of the Host header's (RFC 9112, 3.2.2)."""
    whole = _ABSOLUTE_FORM.fullmatch(incoming.target)
    if whole is None or incoming.method == b"CONNECT":
        return
    authority, rest = whole.groups()
    incoming.target = rest if rest.startswith(b"/") else b"/" + rest
    incoming.headers = [(name, authority if name == b"host" else value) for name, value in incoming.headers]
