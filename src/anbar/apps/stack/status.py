"""What `anbar status` tells of a running stack."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from anbar.adapters.process.proc import is_alive
from anbar.adapters.process.state import PartState, StackState
from anbar.adapters.vllm.launch import answers, ask


@dataclass(frozen=True, slots=True)
class PartStatus:
    """`kind` is "engine", "emulated", "attached" or "router"; an attached engine has no pid and no log here.
    `state` is the router's word for an engine (such as "ready") where the router answers, else "starting",
    "ready", "does not answer" or "ended"."""

    name: str
    kind: str
    pid: int | None
    port: int
    url: str
    state: str
    log: str | None


async def status_of(state: StackState) -> list[PartStatus]:
    """Every part, engines first as the launcher knows them, then the engines that only the router knows."""
    known = await _router_engines(state.endpoint)
    states = await asyncio.gather(*(_state(part, known) for part in state.parts))
    parts = [
        PartStatus(part.name, part.kind, part.pid, part.port, part.url, word, part.log)
        for part, word in zip(state.parts, states, strict=True)
    ]
    launched = {part.name for part in state.parts}
    for name, (url, word) in known.items():
        if name not in launched:
            address = urlsplit(url)
            port = address.port or (443 if address.scheme == "https" else 80)
            parts.append(PartStatus(name, "attached", None, port, url, word, None))
    return parts


async def _router_engines(endpoint: str) -> Mapping[str, tuple[str, str]]:
    """Address and state of each engine by its name; {} while the router does not answer."""
    found = await ask(endpoint, "/admin/engines")
    engines = found.get("engines") if isinstance(found, dict) else None
    return {engine["id"]: (engine["url"], engine["state"]) for engine in engines or ()}


async def _state(part: PartState, known: Mapping[str, tuple[str, str]]) -> str:
    if not is_alive(part.guard):
        return "ended"
    if not part.ready:
        return "starting"
    if part.name in known:
        return known[part.name][1]
    path = "/ready" if part.kind == "router" else "/health"
    return "ready" if await answers(part.url, path) else "does not answer"
