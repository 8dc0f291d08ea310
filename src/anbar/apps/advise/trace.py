"""Traces on disk: the router's block log, Mooncake's traces, Azure's, logs of requests with their text. Plain
or compressed with gzip or xz."""

import csv
import gzip
import itertools
import json
import lzma
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

import msgspec

from anbar.adapters.vllm.tokens import load_tokenizer
from anbar.apps.advise.requests import RequestLine, RequestReader
from anbar.apps.advise.requests import decode as decode_request
from anbar.core.block_log import UNKNOWN_BLOCK_SIZE, BlockLogEntry
from anbar.core.errors import ConfigError
from anbar.plan.workload import Asked, Workload

_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_ALLOWED = "lines of JSON (the router's block log, Mooncake's traces, a log of requests) or Azure's CSV"
_decode = msgspec.json.Decoder(BlockLogEntry).decode


@dataclass(frozen=True, slots=True)
class Trace:
    """What a file says."""

    workload: Workload
    notes: tuple[str, ...]
    """What its reader should know."""


def read_trace(path: Path, tokenizer: str = "") -> Trace:
    """The requests of a file, in the order of their arrival. `tokenizer`: directory of the model's, which a
    log of requests with their text needs.

    Raises ConfigError, which names file, line and field.
    """
    try:
        with _opened(path) as file:
            head = next((line for line in file if line.strip()), "")
            file.seek(0)
            lines = enumerate(file, 1)
            if head.lstrip().startswith("{") and _has_text(head):
                return _requests(path, lines, tokenizer)
            if head.lstrip().startswith("{"):
                return _trace(path, *_block_log(path, lines))
            if tuple(next(csv.reader([head.lstrip("\ufeff")]), ())) == _AZURE:
                return _trace(path, list(_azure(path, lines)), UNKNOWN_BLOCK_SIZE, ())
    except UnicodeDecodeError as error:
        text = "is not text, nor compressed with gzip or xz"
        raise ConfigError(f"{path}: {text}; allowed: {_ALLOWED}") from error
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not head:
        raise ConfigError(f"{path}: is empty; allowed: {_ALLOWED}")
    raise ConfigError(f"{path}:1: begins with {head.strip()[:40]!r}; allowed: {_ALLOWED}")


def _has_text(head: str) -> bool:
    try:
        return "request" in json.loads(head)
    except ValueError:
        return False


def _requests(path: Path, lines: Iterator[tuple[int, str]], tokenizer: str) -> Trace:
    if not tokenizer:
        text = "is a log of requests with their text, and prompts are compared by their tokens"
        raise ConfigError(f"{path}: {text}: give the model's directory with --tokenizer")

    def entries() -> Iterator[tuple[str, RequestLine]]:
        for number, line in lines:
            if not line.strip():
                continue
            try:
                yield f"{path}:{number}", decode_request(line)
            except msgspec.DecodeError as error:
                raise ConfigError(f"{path}:{number}: {_complaint(error)}") from error

    return Trace(RequestReader(load_tokenizer(tokenizer)).workload(entries()), ())


def _opened(path: Path) -> IO[str]:
    with path.open("rb") as file:
        head = file.read(6)
    if head.startswith(b"\x1f\x8b"):
        return gzip.open(path, "rt", encoding="utf-8")
    return lzma.open(path, "rt", encoding="utf-8") if head == b"\xfd7zXZ\x00" else path.open(encoding="utf-8")


def _trace(path: Path, requests: list[Asked], block_size: int, notes: tuple[str, ...]) -> Trace:
    if not requests:
        raise ConfigError(f"{path}: has no requests")
    requests.sort(key=lambda asked: asked.at_s)
    return Trace(Workload(requests, block_size), notes)


def _block_log(path: Path, lines: Iterator[tuple[int, str]]) -> tuple[list[Asked], int, tuple[str, ...]]:
    found: list[Asked] = []
    block_size = 0
    for number, line in lines:
        if not line.strip():
            continue
        try:
            entry = _decode(line)
        except msgspec.DecodeError as error:
            is_torn = not isinstance(error, msgspec.ValidationError) and not line.endswith("\n")
            if is_torn and found:  # a line that ends is whole, and wrong
                return found, block_size, (f"{path}:{number}: is cut off, and was left out",)
            raise ConfigError(f"{path}:{number}: {_complaint(error)}") from error
        block_size = block_size or entry.block_size
        found.append(_asked(f"{path}:{number}", entry, block_size))
    return found, block_size, ()


def _asked(where: str, entry: BlockLogEntry, block_size: int) -> Asked:
    if entry.block_size != block_size:
        text = f"block_size is {entry.block_size}, and was {block_size} before; allowed: one for all lines"
        raise ConfigError(f"{where}: {text}")
    for name, value, least in (
        ("block_size", block_size, 1),
        ("input_length", entry.input_length, 1),
        ("output_length", entry.output_length, 0),
    ):
        if value < least:
            raise ConfigError(f"{where}: {name} is {value}, must be at least {least}")
    most = math.ceil(entry.input_length / block_size)
    if len(entry.hash_ids) > most:
        text = f"hash_ids has {len(entry.hash_ids)} blocks, but {entry.input_length} tokens have {most}"
        raise ConfigError(f"{where}: {text}")
    first_token_s = entry.ttft_ms / 1e3 if entry.stream and entry.ttft_ms is not None else None
    blocks = tuple(entry.hash_ids)
    return Asked(
        entry.timestamp / 1e3, entry.input_length, entry.output_length, blocks, entry.scope, first_token_s
    )


def _complaint(error: msgspec.DecodeError) -> str:
    """Which field, and what is wrong with it, in msgspec's words."""
    if not isinstance(error, msgspec.ValidationError):
        return f"is not JSON: {error}"
    what, _, where = str(error).partition(" - at `$.")
    name = where.rstrip("`")
    return f"{name}: {what[:1].lower()}{what[1:]}" if name else f"{what[:1].lower()}{what[1:]}"


def _azure(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[Asked]:
    for number, line in itertools.dropwhile(lambda pair: not pair[1].lstrip("\ufeff").startswith("T"), lines):
        row = next(csv.reader([line]), [])
        if not row or tuple(row) == _AZURE or row[0].lstrip("\ufeff") == _AZURE[0]:
            continue
        where = f"{path}:{number}"
        if len(row) != len(_AZURE):
            raise ConfigError(f"{where}: has {len(row)} fields; allowed: {', '.join(_AZURE)}")
        yield Asked(_azure_time(where, row[0]), *_counts(where, row), ())


def _azure_time(where: str, text: str) -> float:
    """Seconds; Azure writes seven digits behind the point, of which Python reads six."""
    whole, _, fraction = text.partition(".")
    try:
        return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")
    except ValueError as error:
        raise ConfigError(
            f"{where}: TIMESTAMP is {text!r}, must be like 2023-11-16 18:15:46.6805900"
        ) from error


def _counts(where: str, row: list[str]) -> tuple[int, int]:
    found = []
    for name, text, least in (("ContextTokens", row[1], 1), ("GeneratedTokens", row[2], 0)):
        if not text.strip().isdecimal() or int(text) < least:
            raise ConfigError(f"{where}: {name} is {text!r}, must be a whole number of at least {least}")
        found.append(int(text))
    return found[0], found[1]
