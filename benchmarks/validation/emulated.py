"""One small scenario in the engine model, in virtual time, and on an emulated engine, over HTTP in real time.

The trace and the bounds are those of `benchmarks.emulator_fidelity`, which compares both with a real engine.
The cost is the recorded one of the small model on a CPU, read from that benchmark's last result.
"""

import asyncio
import json
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from anbar.apps import model
from anbar.config.models import DEFAULT_MODEL
from anbar.core.cost import CopyCost, EngineCost, TokenCurve
from anbar.core.cost_file import CostFile, EngineType, Measured
from benchmarks import emulator_fidelity as fidelity
from benchmarks.report import RESULTS

NUM_REQUESTS = 12
KV_BYTES_PER_TOKEN = 46_080
"""Of SmolLM2-135M in float32."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """One figure of both."""

    figure: str
    model: float
    emulated: float

    @property
    def error(self) -> float:
        """Share by which the emulated engine is off."""
        return self.emulated / self.model - 1


def recorded_cost(directory: Path = RESULTS) -> CostFile:
    """What the last run of `emulator-fidelity` calibrated."""
    setup = json.loads((directory / "emulator-fidelity.json").read_text())["setup"]
    cost = setup["calibrated_cost"]
    points = tuple((int(tokens), float(seconds)) for tokens, seconds in cost["tokens"]["points"])
    rest = {name: cost[name] for name in cost if name not in ("tokens", "load", "store")}
    engine = EngineCost(
        TokenCurve(points), load=CopyCost(**cost["load"]), store=CopyCost(**cost["store"]), **rest
    )
    kind = EngineType(DEFAULT_MODEL, "cpu", "float32", setup["vllm"], 16, KV_BYTES_PER_TOKEN, 2048)
    return CostFile(kind, Measured("", "", 0.0), engine)


def compare() -> Iterator[Agreement]:
    """Each figure. Raises FileNotFoundError where the small model is not unpacked."""
    directory = model.models_dir(os.environ) / DEFAULT_MODEL
    if not directory.exists():
        raise FileNotFoundError(f"{directory}: the tokenizer is needed; `make model` unpacks it")
    content = recorded_cost()
    trace: Sequence[fidelity.Shape] = fidelity.make_trace(random.Random(fidelity.SEED), NUM_REQUESTS)
    modelled = asyncio.run(fidelity.play_model(trace, content))
    emulated = asyncio.run(fidelity.play_emulated(trace, content, directory))
    for figure, of in fidelity.FIGURES:
        yield Agreement(figure, of(modelled), of(emulated))
