"""A fake vLLM 0.32 engine for tests: the OpenAI API, KV events and metrics of the real one, in milliseconds.

    engine = FakeEngine(FakeEngineConfig(tokenizer=write_tokenizer(tmp_path / "model"), events="ipc://..."))
    async with engine:
        ...  # POST to f"{engine.url}/v1/chat/completions"

It runs on the test's event loop, or as a process: `python -m anbar.testing.fake_engine --port 8000`. What it
keeps to is checked by `anbar.testing.engine_contract`, which runs against real vLLM too.
"""

from anbar.testing.fake_engine.blocks import Identity, PagedCache, SharedStore, Tiers, block_hashes
from anbar.testing.fake_engine.engine import FakeEngine
from anbar.testing.fake_engine.faults import Fault, FaultKind, Scope, Script
from anbar.testing.fake_engine.records import Ending, Seen
from anbar.testing.fake_engine.scheduler import Counters, Pace
from anbar.testing.fake_engine.state import FakeEngineConfig
from anbar.testing.fake_engine.tokenizer import FakeTokenizer, write_tokenizer
from anbar.testing.fake_engine.wire import EventFaults, Framing

__all__ = [
    "Counters",
    "Ending",
    "EventFaults",
    "FakeEngine",
    "FakeEngineConfig",
    "FakeTokenizer",
    "Fault",
    "FaultKind",
    "Framing",
    "Identity",
    "Pace",
    "PagedCache",
    "Scope",
    "Script",
    "Seen",
    "SharedStore",
    "Tiers",
    "block_hashes",
    "write_tokenizer",
]
