"""Identifiers. Each is a distinct type, so that one cannot be passed for another."""

from typing import NewType

EngineId = NewType("EngineId", str)
"""Name of one engine, unique within a stack; safe in a header, a file name and a metric label."""

RequestId = NewType("RequestId", str)
"""The client's `x-request-id`, or one made by the router."""

ChainHash = NewType("ChainHash", int)
"""Anbar's own 64-bit hash of a block and everything before it (`anbar.core.blocks`)."""

EngineHash = NewType("EngineHash", bytes)
"""A block hash as an engine publishes it; integers of older engines are packed big-endian."""
