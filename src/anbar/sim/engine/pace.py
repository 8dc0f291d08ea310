"""How long a step takes.

The model: a step's tokens go through the weights together (a curve by their number), the new tokens of a
prompt attend to all before them (quadratic), decodes read the KV of their context (linear in bytes), copies
delay it by a share of their own time, and a step that loads lasts until the loads are done, because what was
loaded is used from the next step on.
"""

from dataclasses import dataclass, field

from anbar.core.cost import EngineCost
from anbar.sim.engine.shape import EngineShape
from anbar.sim.engine.step import Step


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of steps on an engine whose coefficients are `engine`."""

    engine: EngineCost = field(default_factory=EngineCost)

    def seconds(self, step: Step, shape: EngineShape) -> float:
        """How long `step` takes, all `num_repeats` of it.

        A stride is k decode steps whose contexts grow by a token each: exactly the sum of them. What a
        stride copies is counted once, for all of it.
        """
        load_s = self.engine.load.seconds(
            step.num_loaded_tokens * shape.kv_bytes_per_token, step.num_load_copies
        )
        store_s = self.engine.store.seconds(
            step.num_stored_tokens * shape.kv_bytes_per_token, step.num_store_copies
        )
        computing_s = self._computing_s(step, shape.kv_bytes_per_token)
        return max(computing_s + self.engine.copy_delay * (load_s + store_s), load_s)

    def _computing_s(self, step: Step, kv_bytes_per_token: int) -> float:
        num_tokens = num_decodes = num_read = 0
        num_pairs = 0  # (L^2 - m^2) over the prompts' pieces
        for piece in step.pieces:
            new, before = piece.num_new, piece.num_before
            num_tokens += new
            if new == 1:
                num_decodes += 1
                num_read += before + 1
            else:
                num_pairs += new * (new + 2 * before)
        repeats = step.num_repeats
        assert repeats == 1 or num_decodes == len(step.pieces), "only decode steps repeat"
        num_read = repeats * num_read + num_decodes * (repeats * (repeats - 1) // 2)
        return (
            repeats * self.engine.tokens.seconds(num_tokens)
            + self.engine.prefill_s_per_token2 * num_pairs
            + self.engine.decode_s_per_kv_byte * kv_bytes_per_token * num_read
        )


ZERO = StepCost()
"""Steps that take no time."""
