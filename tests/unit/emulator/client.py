"""A plain HTTP client for emulated engines in this process: one connection a call."""

import asyncio
import json

from anbar.apps.emulator import EmulatedEngine


async def call(engine: EmulatedEngine, path: str, body: object = None) -> tuple[int, str]:
    """Status and text of an answer; GET without a body, else POST of bytes or JSON."""
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port, limit=1 << 26)
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(data)}\r\n"
    writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + data)
    try:
        answer = await reader.read()
    finally:
        writer.close()
    top, _, text = answer.decode().partition("\r\n\r\n")
    return int(top.split(" ")[1]), text
