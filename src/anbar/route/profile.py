"""What the index must know of an engine to predict its cache hits."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """Fixed facts of one engine's cache."""

    model: str
    """Identity of the weights (the root of `/v1/models`, or the served name): engines with other weights
    never share a block. LoRA adapters are not named here but in events and requests."""

    block_size: int
    """Tokens of one device block."""

    chunk_blocks: int = 0
    """Device blocks in one offloaded chunk; 0: the engine has no host or shared tier."""

    fingerprint: str = ""
    """Engines with the same fingerprint give equal content equal block hashes (same vLLM release, hash
    function and seed, same chunk size). "": no other engine's hashes may stand for this one's."""

    stores: frozenset[str] = frozenset()
    """Owners (as in events, "anbar:<store-id>") of the shared stores that this engine reads from."""

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"block_size is {self.block_size}, must be at least 1")
        if self.chunk_blocks < 0:
            raise ValueError(f"chunk_blocks is {self.chunk_blocks}, must not be negative")
