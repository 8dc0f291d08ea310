"""Small setups and loads."""

from dataclasses import replace

from anbar.apps.simulate.ask import Ask
from anbar.apps.simulate.setup import CacheSetup, FleetSetup, Mode, Setup, StoreSetup
from anbar.plan.catalogue import MODELS
from anbar.plan.deployment import Deployment

LLAMA = Deployment("Llama-3.1-8B", MODELS["Llama-3.1-8B"], "H100")
GIB = 1 << 30
BLOCK = 64


def setup(mode: Mode = Mode.NONE, *, engines: int = 1, kv_tokens: int = 16_384, **fleet: int) -> Setup:
    """An 8B model on one H100 for each engine, with so many tokens of KV."""
    made = FleetSetup(LLAMA, engines, kv_tokens, block_size=BLOCK, **fleet)  # type: ignore[arg-type]
    return Setup(made, CacheSetup(mode, 32 * GIB, BLOCK, store=StoreSetup("valkey-100gbe")))


def documents(count: int, rounds: int, *, every_s: float = 2.0, tokens: int = 4096) -> list[Ask]:
    """Documents asked for one after the other, again and again: each is of whole blocks and one token."""
    blocks = tokens // BLOCK
    return [
        Ask(turn, turn * every_s, tokens + 1, 8, tuple(range(1 + doc * blocks, 1 + (doc + 1) * blocks)))
        for turn, doc in enumerate(list(range(count)) * rounds)
    ]


def in_a_burst(asks: list[Ask]) -> list[Ask]:
    """The same all at once."""
    return [replace(ask, at_s=0.0) for ask in asks]
