"""What an engine's status pages say, parsed. Pure: bytes in, frozen values out, or WireError.

Pages (vLLM 0.32): `/v1/models`, `/version`, `/kv_event_sources` (JSON) and `/metrics` (Prometheus text).
Unknown fields and metrics are ignored, so that a new release does not fail a probe.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from anbar.core.errors import WireError


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of `/v1/models`."""

    name: str
    root: str
    """What was loaded: a directory, a hub name, or a LoRA adapter's path."""
    parent: str | None
    """The base model's name for a LoRA adapter, else None."""
    max_model_len: int | None
    """Tokens of context; adapters have none of their own."""


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """`vllm:cache_config_info`: constant for the life of an engine."""

    block_size: int
    """Tokens of one device block."""
    num_blocks: int | None
    prefix_caching: bool
    hash_algorithm: str
    """"" when the engine does not say."""


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """`vllm:lora_requests_info`: LoRA adapters at the moment of looking."""

    num_slots: int = 0
    """Adapters that can be in use at once (`--max-loras`); 0: the engine does not say."""
    running: frozenset[str] = frozenset()
    """Names of those that running requests use."""


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where one data-parallel rank publishes its KV events, as addresses to connect to."""

    rank: int
    events: str
    replay: str | None


def parse_models(page: bytes) -> tuple[ServedModel, ...]:
    """The models of `/v1/models`, base models and LoRA adapters."""
    return tuple(
        ServedModel(card.id, card.root or card.id, card.parent, card.max_model_len)
        for card in _decode(page, _Models, "/v1/models").data
    )


def parse_version(page: bytes) -> str:
    """The release in `/version`."""
    return _decode(page, _Version, "/version").version


def parse_event_sources(page: bytes, host: str) -> tuple[EventSource, ...]:
    """The sources of `/kv_event_sources` by rank; `host` is the engine's, for addresses that bind to any.

    vLLM repeats the addresses as configured, `tcp://*:5557` for example; for `tcp://*:0` it gives the address
    it has bound. Sources that publish nothing are left out.
    """
    sources = []
    for rank, source in _decode(page, dict[int, _Source], "/kv_event_sources").items():
        events = connectable(source.endpoint or "", host)
        if source.enable_kv_cache_events and source.publisher == "zmq" and events is not None:
            replay = connectable(source.replay_endpoint or "", host)
            sources.append(EventSource(rank, events, replay))
    return tuple(sorted(sources, key=lambda source: source.rank))


def connectable(address: str, host: str) -> str | None:
    """The address to connect to for one that an engine has bound; None if there is none to connect to."""
    if address.startswith(("ipc://", "inproc://")):
        return address
    scheme, _, rest = address.partition("://")
    name, _, port = rest.rpartition(":")
    if scheme != "tcp" or not _natural(port) or not name:
        return None
    anywhere = name in ("*", "0.0.0.0", "[::]", "::")
    return f"tcp://{_bracketed(host)}:{port}" if anywhere else address


def parse_metrics(page: bytes) -> CacheFacts | None:
    """The facts of the cache in `/metrics`, None where it does not tell. Raises WireError only if the page is
    not text."""
    try:
        text = page.decode("utf-8")
    except UnicodeDecodeError as error:
        raise WireError("/metrics is not text") from error
    found = (
        _cache_facts(dict(_LABEL.findall(line))) for line in text.splitlines() if line.startswith(_CACHE)
    )
    return next((facts for facts in found if facts is not None), None)


def parse_adapters(page: bytes) -> AdapterFacts:
    """The adapters in `/metrics`. The engine keeps a line for every combination there ever was, whose value
    is when it last was: the newest one counts. It is not written any more when the last request has
    ended."""
    newest_s, found = 0.0, AdapterFacts()
    start = page.find(_ADAPTERS)
    while start >= 0:
        end = page.find(b"\n", start + 1)
        line = page[start : end if end >= 0 else len(page)].decode("utf-8", "replace")
        start = page.find(_ADAPTERS, start + 1)
        labels, at_s = dict(_LABEL.findall(line)), _number(line.rpartition(" ")[2])
        if at_s >= newest_s:
            names = labels.get("running_lora_adapters", "").split(",")
            slots = _natural(labels.get("max_lora"))
            newest_s, found = at_s, AdapterFacts(slots or 0, frozenset(filter(None, names)))
    return found if _RUNNING.search(page) else AdapterFacts(found.num_slots)


_T = TypeVar("_T")


class _Card(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Card]


class _Version(msgspec.Struct):
    version: str


class _Source(msgspec.Struct):
    enable_kv_cache_events: bool = False
    publisher: str | None = None
    endpoint: str | None = None
    replay_endpoint: str | None = None


def _decode(page: bytes, shape: type[_T], name: str) -> _T:
    try:
        return msgspec.json.decode(page, type=shape, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"{name}: {error}") from error


_CACHE = "vllm:cache_config_info{"
_RUNNING = re.compile(rb"^vllm:num_requests_running(?:\{[^}\n]*\})? (?!0(?:\.0*)?$)", re.MULTILINE)
"""A number of running requests that is not 0."""
_ADAPTERS = b"\nvllm:lora_requests_info{"
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def _cache_facts(labels: Mapping[str, str]) -> CacheFacts | None:
    block_size, num_blocks = _natural(labels.get("block_size")), _natural(labels.get("num_gpu_blocks"))
    if not block_size:
        return None
    return CacheFacts(
        block_size,
        num_blocks,
        labels.get("enable_prefix_caching", "") == "True",
        labels.get("prefix_caching_hash_algo", ""),
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def _natural(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
