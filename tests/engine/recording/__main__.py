"""Record scenarios with real vLLM; runs in the engine's interpreter, from the repository's root.

    .venv-engine/bin/python -m tests.engine.recording --out DIRECTORY [--scenario NAME]...

Each scenario takes some seconds. A file per scenario: DIRECTORY/NAME.json.gz.
"""

import argparse
import os
import time
from pathlib import Path

from tests.engine.batches import SCENARIOS, scenario

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core in this process, to be watched
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",
    "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0",  # whole hashes
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


def main() -> None:
    os.environ.update(_ENVIRONMENT)
    os.environ.pop("PYTHONHASHSEED", None)  # vLLM would begin its hash chain with it
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scenario", action="append", help="of batches.py, or drawn-N; default: all of them")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    from tests.engine.recording import recorded, run  # vLLM reads its environment when it is imported

    for name in options.scenario or list(SCENARIOS):
        started_s = time.monotonic()
        recording = run.record(scenario(name))
        recorded.save(recording, options.out / f"{name}.json.gz")
        num_steps = sum(len(batch.steps) for batch in recording.batches)
        print(f"{name}: {num_steps} steps in {time.monotonic() - started_s:.1f} s", flush=True)


if __name__ == "__main__":
    main()
