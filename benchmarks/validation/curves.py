"""vLLM's published curves of Llama-3.1-8B on one H100, and the engine model's."""

from dataclasses import dataclass
from functools import cache

from anbar.core.cost import EngineCost
from anbar.sim.engine.engine import NO_TIERS, Engine, Tiers
from anbar.sim.engine.pace import StepCost
from anbar.sim.engine.shape import EngineShape, HostShape
from benchmarks.validation import fitting, published
from benchmarks.validation.drive import Clients, Prompt

BLOCK = 16
NUM_BLOCKS = 28_000
"""Of 2 MiB: what 80 GB leave beside 16 GB of weights, about."""
HOST_BLOCKS = 100_000
PROMPT = fitting.HIT_PROMPT
NUM_REQUESTS = 600
"""Of which the curve by hit rate is made: beyond, it hardly changes."""


@dataclass(frozen=True, slots=True)
class Point:
    """A published figure and the model's."""

    at: float
    published: float
    model: float

    @property
    def error(self) -> float:
        """Share by which the model is off."""
        return self.model / self.published - 1


def _engine(cost: EngineCost, *, has_host: bool, caches: bool = True) -> Engine:
    shape = EngineShape(
        block_size=BLOCK,
        num_blocks=NUM_BLOCKS,
        max_num_seqs=1024,
        max_num_batched_tokens=fitting.STEP_TOKENS,
        max_model_len=131_072,
        prefix_caching=caches,
        kv_bytes_per_token=131_072,
    )
    return Engine(shape, StepCost(cost), Tiers(HostShape(HOST_BLOCKS)) if has_host else NO_TIERS)


def _alone_s(engine: Engine, cost: EngineCost, number: int, num_tokens: int) -> float:
    prompt = Prompt(number, 0, num_tokens, num_tokens, 1)
    return Clients([engine], lambda _: 0, 1, cost.front_s).run(iter([prompt]))[0].ttft_s


def compute_s(cost: EngineCost, num_tokens: int) -> float:
    """Time to first token of one prompt that nothing is known of."""
    return _alone_s(_engine(cost, has_host=False), cost, 0, num_tokens)


def load_s(cost: EngineCost, num_tokens: int) -> float:
    """Time to first token of one prompt that is in host RAM and nowhere else."""
    engine = _engine(cost, has_host=True)
    _alone_s(engine, cost, 0, num_tokens)
    engine.clear_cache()
    return _alone_s(engine, cost, 1, num_tokens)


def tokens_per_s(cost: EngineCost, hit_share: float | None, num_requests: int) -> float:
    """Of prompts of 512 tokens that all come at once, without a cache on the device. `hit_share` of them are
    in host RAM; None: there is no host tier."""
    engine = _engine(cost, has_host=hit_share is not None, caches=False)
    share = hit_share or 0.0
    is_hit = [int((n + 1) * share + 1e-9) > int(n * share + 1e-9) for n in range(num_requests)]
    known = [Prompt(n, n, PROMPT, PROMPT, 1) for n in range(num_requests) if is_hit[n]]
    Clients([engine], lambda _: 0, 64).run(iter(known))
    groups = [n if is_hit[n] else num_requests + n for n in range(num_requests)]
    asked = [Prompt(num_requests + n, groups[n], PROMPT, PROMPT, 1) for n in range(num_requests)]
    served = Clients([engine], lambda _: 0, num_requests).run(iter(asked))
    return PROMPT * num_requests / max(one.last_s for one in served)


def compute_curve(cost: EngineCost) -> list[Point]:
    """Seconds to the first token by length, computed."""
    return [Point(p.num_tokens, p.compute_s, compute_s(cost, p.num_tokens)) for p in published.ttft_points()]


def load_curve(cost: EngineCost) -> list[Point]:
    """Seconds to the first token by length, loaded."""
    return [Point(p.num_tokens, p.load_s, load_s(cost, p.num_tokens)) for p in published.ttft_points()]


def hit_curve(cost: EngineCost, num_requests: int = NUM_REQUESTS) -> list[Point]:
    """Tokens a second by share of hits; -1 stands for no host tier."""
    without = tokens_per_s(cost, None, num_requests)
    return [
        Point(-1.0, published.NO_OFFLOAD_TOKENS_PER_S, without),
        *(
            Point(p.hit_share, p.tokens_per_s, tokens_per_s(cost, p.hit_share, num_requests))
            for p in published.hit_points()
        ),
    ]


def transfer_curve(cost: EngineCost) -> tuple[list[Point], list[Point]]:
    """Bytes a second by the size of pieces, to the device and to the host: a thousand pieces at once."""
    num = 1000
    to_device, to_host = [], []
    for p in published.transfer_points():
        size = num * p.piece_bytes
        to_device.append(Point(p.piece_bytes, p.to_device, size / cost.load.seconds(size, num)))
        to_host.append(Point(p.piece_bytes, p.to_host, size / cost.store.seconds(size, num)))
    return to_device, to_host


class _Model:
    """What the fit asks of the engine model."""

    def worst_throughput(self, cost: EngineCost) -> float:
        return max(abs(point.error) for point in hit_curve(cost, 200))

    def load_offset_s(self, cost: EngineCost) -> float:
        """The constant that makes the sum of the squares of relative errors smallest."""
        points = load_curve(cost)
        missing = sum((p.published - p.model) / p.published**2 for p in points)
        return missing / sum(1 / p.published**2 for p in points)


@cache
def fitted() -> fitting.Fitted:
    """The fit; the same each time."""
    return fitting.llama(_Model())
