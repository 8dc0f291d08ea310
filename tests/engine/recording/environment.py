"""How vLLM is run to be compared: set before it is imported, since it reads its environment then."""

import os
import sys

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


def prepare(module: str) -> None:
    """Of the program `module`. Starts it again where sets of strings would have another order in every run:
    what vLLM leaves to that order is at least always the same."""
    if sys.flags.hash_randomization:
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])
    os.environ.pop("PYTHONHASHSEED", None)  # vLLM would begin its hash chain with it
    os.environ.update(_ENVIRONMENT)
