"""What real vLLM does with a batch of requests, step by step and block by block.

`recorded` is the recording, readable with any interpreter; the other modules run in the engine's:

    .venv-engine/bin/python -m tests.engine.recording --scenario NAME --out DIRECTORY
"""
