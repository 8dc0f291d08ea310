"""A model of one vLLM engine: the same blocks, hits, evictions, preemptions, events, and how long steps take.

Pure and deterministic: no clock, no sockets, no threads. `Engine` is told the time and says when a step ends.
It serves the emulator, the simulator and the advisor; `tests/engine` holds it to real vLLM block by block.
"""
