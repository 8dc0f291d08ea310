"""Chunks of a body that comes in frames (RFC 9112, 7.1), as they mostly come: one whole chunk in one read."""

_LINE_AND_CHUNK_END = b"\n\r\n"
_LEAST_CHUNK, _MOST_CHUNK = 0x10, 0xFFF
"""Sizes with two or three digits: an event of a stream."""


def ends_with_chunk(data: bytes, parts: list[bytes]) -> bool:
    """Whether the parser, which found `parts` of a body in `data`, has come to the end of a chunk with it,
    and no further. Told of chunks that end with a line, as events do: had it come further, there would be an
    empty line where the size of the next chunk stands; had it not come so far, the last part would end as
    `data` does."""
    if not parts or not data.endswith(_LINE_AND_CHUNK_END):
        return False
    last = parts[-1]
    return len(last) >= len(_LINE_AND_CHUNK_END) and not last.endswith(_LINE_AND_CHUNK_END)


def whole_chunk(data: bytes) -> bytes:
    """What `data` carries, if it is one chunk of a usual size, in the frame that servers put around one; else
    nothing."""
    size = len(data)
    size -= 6 if size <= 0xFF + 6 else 7  # digits and two line ends
    if _LEAST_CHUNK <= size <= _MOST_CHUNK and data.endswith(b"\r\n") and data.startswith(b"%x\r\n" % size):
        return data[-2 - size : -2]
    return b""
