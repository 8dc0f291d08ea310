#!/usr/bin/env bash
# On a machine with a GPU: the end-to-end suite on real GPU engines, bounded in time. Run from the repository.
#   ANBAR_ENGINE_PYTHON=/path/to/python-with-gpu-vllm scripts/gpu_check.sh [MODEL_DIRECTORY]
set -euo pipefail
: "${ANBAR_ENGINE_PYTHON:?names the interpreter with vLLM 0.32 for CUDA}"
make install-router
.venv/bin/anbar doctor
timeout 600 .venv/bin/python -m pytest tests/e2e --timeout 300 -q
timeout 120 .venv/bin/python -m benchmarks.gpu_copy  # pinned host memory and back: what a copy costs here
timeout 240 .venv/bin/python -m benchmarks.main_job --rounds 5 --dtype auto
