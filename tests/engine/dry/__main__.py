"""Compare random engines with the engine model.

Runs in the engine's interpreter, in the repository's root. Ends with 1 when one differs.
"""

import argparse
import json
import os
import sys
import traceback
from collections import Counter

_ENVIRONMENT = {
    "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",  # what vLLM leaves to the order of sets is at least the same in every run
}


def main() -> None:
    if any(os.environ.get(name) != value for name, value in _ENVIRONMENT.items()):
        os.environ.update(_ENVIRONMENT)
        os.execv(sys.executable, [sys.executable, "-m", "tests.engine.dry", *sys.argv[1:]])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 100), metavar=("FROM", "TO"))
    options = parser.parse_args()

    from tests.engine.dry.compare import compare  # vLLM reads its environment when it is imported

    totals: Counter[str] = Counter()
    num_differing = 0
    for seed in range(*options.seeds):
        try:
            totals += compare(seed)
        except AssertionError as error:
            num_differing += 1
            (place,) = traceback.extract_tb(error.__traceback__)[-1:]
            print(f"seed {seed}: {str(error)[:2000]} ({place.filename}, line {place.lineno})", flush=True)
    print(json.dumps(totals))
    sys.exit(num_differing > 0)


if __name__ == "__main__":
    main()
