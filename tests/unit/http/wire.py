"""The two ends of an upstream connection without a socket."""

import asyncio

from anbar.adapters.http.upstream import UpstreamBroken


class Wire(asyncio.Transport):
    """Takes what is sent and does nothing with it."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return 0


class BodySink:
    """Collects a body, and which chunks came in their frames."""

    def __init__(self) -> None:
        self.data = b""
        self.framed: list[bytes] = []
        self.num_ends = 0

    def body(self, data: bytes) -> None:
        self.data += data

    def chunk(self, data: bytes, framed: bytes) -> None:
        self.data += data
        self.framed.append(framed)
        size, _, rest = framed.partition(b"\r\n")
        assert int(size, 16) == len(data)
        assert rest == data + b"\r\n"

    def ended(self) -> None:
        self.num_ends += 1

    def broke(self, error: UpstreamBroken) -> None:
        raise error
