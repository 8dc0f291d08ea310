"""Run the contract against an engine: `python -m anbar.testing.engine_contract --url ... --model ...`."""

import argparse
import sys

from anbar.testing.engine_contract import ALL, Target


def _target() -> Target:
    parser = argparse.ArgumentParser(prog="anbar.testing.engine_contract", description=__doc__)
    parser.add_argument("--url", required=True, help="base address, without /v1")
    parser.add_argument("--model", required=True, help="served name")
    parser.add_argument("--events", default="", help="address of the KV events")
    parser.add_argument("--replay", default="", help="address of the replay socket")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--timeout-s", type=float, default=60.0)
    parser.add_argument("--offloads", action="store_true", help="it has host RAM or a store below its device")
    given = parser.parse_args()
    return Target(
        given.url, given.model, given.events, given.replay, given.api_key, given.timeout_s, given.offloads
    )


def main() -> int:
    """Run every check; the number of those that do not hold is the exit code."""
    target = _target()
    num_broken = 0
    for check in ALL:
        try:
            check(target)
        except (AssertionError, OSError, KeyError, StopIteration, ValueError) as error:
            num_broken += 1
            print(f"FAIL {check.__name__}: {type(error).__name__}: {error}")  # noqa: T201 - its output
        else:
            print(f"ok   {check.__name__}")  # noqa: T201
    return num_broken


if __name__ == "__main__":
    sys.exit(main())
