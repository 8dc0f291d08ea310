"""Run the contract against an engine: `python -m anbar.testing.engine_contract --url ... --model ...`."""

import argparse
import sys
import time

from anbar.testing.engine_contract import ALL, ESSENTIAL, Target


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="anbar.testing.engine_contract", description=__doc__)
    parser.add_argument("--url", required=True, help="base address, without /v1")
    parser.add_argument("--model", required=True, help="served name")
    parser.add_argument("--events", default="", help="address of the KV events")
    parser.add_argument("--replay", default="", help="address of the replay socket")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--timeout-s", type=float, default=60.0)
    parser.add_argument("--offloads", action="store_true", help="it has host RAM or a store below its device")
    parser.add_argument("--dev-mode", action="store_true", help="it has vLLM's development endpoints")
    parser.add_argument("--request-ids", action="store_true", help="it repeats x-request-id")
    parser.add_argument("--lora", default="", help="an adapter that it serves")
    parser.add_argument("--alone", action="store_true", help="nobody else uses it: fill its cache, drop it")
    parser.add_argument("--essential", action="store_true", help="only what Anbar itself relies on")
    parser.add_argument("--only", default="", help="checks whose name contains this")
    return parser.parse_args()


def main() -> int:
    """Run every check; the number of those that do not hold is the exit code."""
    given = _arguments()
    target = Target(
        given.url,
        given.model,
        given.events,
        given.replay,
        given.api_key,
        given.timeout_s,
        offloads=given.offloads,
        dev_mode=given.dev_mode,
        request_ids=given.request_ids,
        lora=given.lora,
        alone=given.alone,
    )
    listed = ESSENTIAL if given.essential else ALL
    checks = [check for check in listed if given.only in check.__name__]
    num_broken = 0
    for check in checks:
        started_s = time.monotonic()
        try:
            check(target)
            said = "ok  "
        except (
            AssertionError,
            OSError,
            LookupError,
            StopIteration,
            ValueError,
            TypeError,
            AttributeError,
        ) as error:
            num_broken += 1
            said = f"FAIL {type(error).__name__}: {error}"
        print(f"{check.__name__} ({time.monotonic() - started_s:.1f} s) {said}", flush=True)  # noqa: T201 - its output
    return num_broken


if __name__ == "__main__":
    sys.exit(main())
