"""Compare random engines with the engine model.

Runs in the engine's interpreter, in the repository's root. Ends with 1 when one differs.
"""

import argparse
import json
import sys
import traceback
from collections import Counter
from dataclasses import asdict

from tests.engine.recording import environment


def main() -> None:
    environment.prepare("tests.engine.dry")
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
            totals.update(asdict(compare(seed)))
        except AssertionError as error:
            num_differing += 1
            (place,) = traceback.extract_tb(error.__traceback__)[-1:]
            print(f"seed {seed}: {str(error)[:2000]} ({place.filename}, line {place.lineno})", flush=True)
    print(json.dumps(totals))
    sys.exit(num_differing > 0)


if __name__ == "__main__":
    main()
