"""Run the contract against an engine: `python -m anbar.testing.engine_contract --url ... --model ...`."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from http.client import HTTPException

import msgspec
import zmq

from anbar.testing.engine_contract import ALL, EMBEDDING, ESSENTIAL, Check, NotApplicable, Target
from anbar.testing.engine_contract.event_log import TIMEOUT_S
from anbar.testing.engine_contract.target import context_lengths

_DIFFERENCES = (
    AssertionError,
    AttributeError,
    HTTPException,
    LookupError,
    OSError,
    StopIteration,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
    zmq.ZMQError,
)
"""What a check raises that met something else than it expects."""


class Outcome(StrEnum):
    """Of one check, as it is printed."""

    OK = "ok"
    FAILED = "FAIL"
    SKIPPED = "skip"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="anbar.testing.engine_contract", description=__doc__)
    parser.add_argument("--url", required=True, help="base address, without /v1")
    parser.add_argument("--model", required=True, help="served name")
    parser.add_argument("--events", default="", help="address of the KV events")
    parser.add_argument("--replay", default="", help="address of the replay socket")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--timeout-s", type=float, default=120.0)
    parser.add_argument("--embeds", action="store_true", help="it embeds and generates nothing")
    parser.add_argument("--offloads", action="store_true", help="it has host RAM or a store below its device")
    parser.add_argument("--dev-mode", action="store_true", help="it has vLLM's development endpoints")
    parser.add_argument("--request-ids", action="store_true", help="it repeats x-request-id")
    parser.add_argument("--timed", action="store_true", help="its answers tell its times")
    parser.add_argument("--auto-tools", action="store_true", help="it finds calls of tools in answers")
    parser.add_argument("--lora", default="", help="an adapter that it serves")
    parser.add_argument("--runtime-lora", default="", help="directory of an adapter that it can load")
    parser.add_argument("--alone", action="store_true", help="nobody else uses it: fill its cache, drop it")
    parser.add_argument("--essential", action="store_true", help="only what Anbar itself relies on")
    parser.add_argument("--only", default="", help="checks whose name contains this")
    return parser


def chosen(parser: argparse.ArgumentParser, given: argparse.Namespace) -> list[Check]:
    """The checks that are asked for; ends the program when there are none."""
    listed = EMBEDDING if given.embeds else ESSENTIAL if given.essential else ALL
    checks = [check for check in listed if given.only in check.__name__]
    if not checks:
        names = ", ".join(check.__name__ for check in listed)
        parser.error(f"argument --only: no check's name contains {given.only!r}; there are {names}")
    return checks


def outcome(check: Check, target: Target) -> tuple[Outcome, str]:
    """How the check went, and what to say of it."""
    try:
        check(target)
    except NotApplicable as reason:
        return Outcome.SKIPPED, str(reason)
    except zmq.Again:
        return Outcome.FAILED, _silence(target)
    except _DIFFERENCES as error:
        return Outcome.FAILED, f"{type(error).__name__}: {error}"
    return Outcome.OK, ""


def _silence(target: Target) -> str:
    addresses = " and ".join(filter(None, (target.events, target.replay)))
    return (
        f"nothing came from {addresses} within {TIMEOUT_S:g} s: check that --kv-events-config has "
        "enable_kv_cache_events, publisher zmq and an address that vLLM binds, which is tcp://*:PORT; "
        "to tcp://127.0.0.1:PORT it connects instead"
    )


def refusal(target: Target) -> str:
    """Why no check can hold: the engine answers, and serves another model. "": the checks will tell."""
    try:
        served = context_lengths(target)
    except _DIFFERENCES:
        return ""
    if target.model in served:
        return ""
    return f"argument --model: {target.base_url} serves {', '.join(served)}, not {target.model}"


def _target(given: argparse.Namespace) -> Target:
    return Target(
        given.url,
        given.model,
        given.events,
        given.replay,
        given.api_key,
        given.timeout_s,
        embeds=given.embeds,
        offloads=given.offloads,
        dev_mode=given.dev_mode,
        request_ids=given.request_ids,
        timed=given.timed,
        auto_tools=given.auto_tools,
        lora=given.lora,
        runtime_lora=given.runtime_lora,
        alone=given.alone,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every check; the number of those that do not hold is the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    checks = chosen(parser, given)
    target = _target(given)
    if wrong := refusal(target):
        parser.error(wrong)
    counts: Counter[Outcome] = Counter()
    for check in checks:
        started_s = time.monotonic()
        found, text = outcome(check, target)
        counts[found] += 1
        print(f"{check.__name__} ({time.monotonic() - started_s:.1f} s) {found} {text}".rstrip(), flush=True)  # noqa: T201 - its output
    print(", ".join(f"{counts[found]} {found}" for found in Outcome), flush=True)  # noqa: T201 - its output
    return counts[Outcome.FAILED]


if __name__ == "__main__":
    sys.exit(main())
