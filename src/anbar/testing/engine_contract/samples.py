"""GET /metrics: its samples, and how they move."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from anbar.testing.engine_contract.target import Target, call, complete, eventually, ok

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_COMMON = ("engine", "model_name")
"""Labels that all samples of an engine share."""
_SHORTEST = 'request_prompt_tokens_bucket{le="1.0"}'
"""Counts the requests whose prompt is a single token: no check's prompt is, only the mark's."""
_GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")

Moves = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the page."""

    name: str
    labels: Mapping[str, str]
    value: float


def metrics(target: Target) -> str:
    """The page."""
    reply = call(target, "GET", "/metrics")
    assert reply.status == 200
    return reply.body.decode()


def samples(page: str, name: str = "") -> list[Sample]:
    """The samples of one name, or all of them, in the page's order."""
    found = []
    for line in page.splitlines():
        head, _, value = line.rpartition(" ")
        own, _, labels = head.partition("{")
        if not line.startswith("#") and name in ("", own):
            found.append(Sample(own, dict(_LABEL.findall(labels)), float(value)))
    return found


def totals(target: Target) -> dict[str, float]:
    """vLLM's samples by short name and the labels that tell them apart: `name{label="value"}`."""
    found: dict[str, float] = {}
    for sample in samples(metrics(target)):
        if sample.name.startswith("vllm:"):
            name = sample.name.removeprefix("vllm:")
            own = ",".join(f'{key}="{text}"' for key, text in sample.labels.items() if key not in _COMMON)
            found[f"{name}{{{own}}}" if own else name] = sample.value
    return found


def moves(before: Moves, after: Moves) -> dict[str, float]:
    """The samples that moved, and by how much."""
    changed = {name: value - before.get(name, 0.0) for name, value in after.items()}
    return {name: by for name, by in changed.items() if by}


def moved_by(target: Target, action: Callable[[], object]) -> dict[str, float]:
    """What an action moves, once all of it is counted, on an engine that nobody else uses.

    Counters are written in the requests' order, a little after the answers: when a request that follows the
    action is counted and nothing runs, all of the action is. What such a request moves is measured before.
    """
    idle = _settled(target)
    before = _settled(target)
    action()
    after = moves(before, _settled(target))
    mark = moves(idle, before)
    own = {name: after.get(name, 0.0) - mark.get(name, 0.0) for name in {**after, **mark}}
    return {name: by for name, by in own.items() if by}


def wait_idle(target: Target) -> None:
    """Until nothing runs, waits or holds blocks, as of the last step."""
    eventually(lambda: not any(map(totals(target).__getitem__, _GAUGES)), target, lambda: totals(target))


def _settled(target: Target) -> dict[str, float]:
    """Ask for the mark; the page once that is counted and nothing is left to do."""
    counted = totals(target)[_SHORTEST]
    ok(complete(target, [5], max_tokens=1, ignore_eos=True))
    eventually(lambda: totals(target)[_SHORTEST] > counted, target, lambda: _SHORTEST)
    wait_idle(target)
    return totals(target)


def block_size(target: Target) -> int:
    """Tokens per block, as the probe reads it."""
    return int(_cache_config(target)["block_size"])


def capacity(target: Target) -> int:
    """Blocks that can hold something: vLLM's first block never does."""
    return int(_cache_config(target)["num_gpu_blocks"]) - 1


def _cache_config(target: Target) -> Mapping[str, str]:
    (config,) = samples(metrics(target), "vllm:cache_config_info")
    return config.labels
