"""vLLM's scheduler, offloading connector and tiering manager, and the plugin's shared tier, without a model.

Nothing is computed and nothing copied, so that thousands of small engines can be compared with the engine
model in a minute:

    .venv-engine/bin/python -m tests.engine.dry --seeds 0 300                (in the repository's root)
"""
