"""Watching a vLLM engine start: how far it is, by its log, and whether it serves, by its /health."""

import asyncio
import http.client
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

_PHASES: Sequence[tuple[str, str]] = (
    ("Resolved architecture", "reading the model's configuration"),
    ("Initializing a V1 LLM engine", "starting the engine core"),
    ("Starting to load model", "loading weights"),
    ("Loading weights took", "weights are loaded"),
    ("Dynamo bytecode transform", "compiling"),
    ("KV cache size:", "allocating the KV cache"),
    ("Capturing CUDA graphs", "capturing CUDA graphs"),
    ("init engine (profile", "starting the API server"),
    ("Application startup complete", "answering"),
)
"""A piece of a line in vLLM 0.32's log, and what it means. Only for progress: a line that is worded otherwise
in another release costs a word on the screen, nothing else."""

_MAX_READ = 1 << 20
FIRST_PHASE = "starting Python"


class StartProgress:
    """Reads a growing log and tells the latest phase."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = 0
        self._phase = FIRST_PHASE
        self._rest = b""

    def phase(self) -> str:
        """The phase after all that was logged so far; cheap when nothing was added."""
        try:
            with self._log.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                data = self._rest + file.read(_MAX_READ)
                self._offset = file.tell()
        except OSError:
            return self._phase
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            self._phase = phase_of(line.decode(errors="replace")) or self._phase
        return self._phase


def phase_of(line: str) -> str | None:
    """What a line of vLLM's log says about its start; None for most lines."""
    return next((phase for piece, phase in _PHASES if piece in line), None)


_ERROR = re.compile(r"(?:^|\] |\) )((?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception)(?::.*)?)$")
"""The last line of a Python traceback, behind what vLLM's logger and its processes put in front."""
_ECHO = "root cause"
"""A process whose child failed raises an error of its own that says only this."""


def root_cause(log: Path) -> str | None:
    """The error that a failed engine's log begins to be about: of the process that failed first, not of those
    that waited for it. None when the log holds no error."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MAX_READ))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    echoes = [number for number, line in enumerate(lines) if _ECHO in line and _ERROR.search(line)]
    before = lines[: echoes[0]] if echoes else lines
    found = [match[1] for line in before if (match := _ERROR.search(line)) is not None]
    return found[-1].strip() if found else None


async def answers(url: str, path: str = "/health", timeout_s: float = 2.0) -> bool:
    """Whether GET `url``path` answers 200 in time."""
    return await asyncio.to_thread(_get, url, path, timeout_s) is not None


async def ask(url: str, path: str, timeout_s: float = 2.0) -> object:
    """The JSON that GET `url``path` answers; None when there is no such answer in time."""
    body = await asyncio.to_thread(_get, url, path, timeout_s)
    try:
        return json.loads(body) if body is not None else None
    except ValueError:
        return None


def _get(url: str, path: str, timeout_s: float) -> bytes | None:
    """The body of an answer with status 200."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}{path}")
        reply = connection.getresponse()
        return reply.read() if reply.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
