"""Record scenarios with real vLLM; runs in the engine's interpreter, from the repository's root.

    .venv-engine/bin/python -m tests.engine.recording --out DIRECTORY [--scenario NAME]...

Each scenario takes some seconds. A file per scenario: DIRECTORY/NAME.json.gz.
"""

import argparse
import time
from pathlib import Path

from tests.engine.batches import SCENARIOS
from tests.engine.recording import environment


def main() -> None:
    environment.prepare("tests.engine.recording")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="default: all of them")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    from tests.engine.recording import recorded, run  # vLLM reads its environment when it is imported

    for name in options.scenario or list(SCENARIOS):
        started_s = time.monotonic()
        recording = run.record(SCENARIOS[name])
        recorded.save(recording, options.out / f"{name}.json.gz")
        num_steps = sum(len(batch.steps) for batch in recording.batches)
        print(f"{name}: {num_steps} steps in {time.monotonic() - started_s:.1f} s", flush=True)


if __name__ == "__main__":
    main()
