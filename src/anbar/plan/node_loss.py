"""What losing nodes of a store costs, by copies and by what answers in their place."""

from dataclasses import dataclass, replace
from math import comb

from anbar.core.errors import ConfigError
from anbar.plan.answer import Answer, Figure, in_words
from anbar.plan.calculators import never_stored
from anbar.plan.deployment import Deployment
from anbar.plan.media import Medium


@dataclass(frozen=True, slots=True)
class NodeLoss:
    """What is lost of what."""

    num_nodes: int
    replicas: int
    """Copies of each chunk, on nodes of their own."""
    num_lost: int = 1
    num_tokens: int = 8192
    """Of a prefix in the store."""
    chunk_tokens: int = 256
    hit_share: float = 0.5
    """Of prompt tokens, that the store serves."""

    @property
    def gone(self) -> float:
        """Share of chunks of which all copies were on the nodes that are lost."""
        return comb(self.num_lost, self.replicas) / comb(self.num_nodes, self.replicas)

    @property
    def num_chunks(self) -> int:
        return self.num_tokens // self.chunk_tokens

    @property
    def num_stored(self) -> int:
        """Tokens of the prefix in whole chunks."""
        return self.num_chunks * self.chunk_tokens

    @property
    def num_kept(self) -> int:
        """Of those, what is still found, in the mean."""
        return round(self.found * self.num_stored)

    @property
    def found(self) -> float:
        """Share of the prefix that is still found: all before a chunk must be there, and each is or is not by
        itself."""
        kept = 1.0 - self.gone
        return sum(kept**place for place in range(1, self.num_chunks + 1)) / self.num_chunks


@dataclass(frozen=True, slots=True)
class Fallback:
    """What answers for what is lost."""

    text: str
    found: float = 0.0
    """Share of the lost tokens that it has."""
    medium: Medium | None = None
    """A store behind the one that is lost."""


NOTHING = Fallback("nothing")


@dataclass(frozen=True, slots=True)
class Prices:
    """What loading and computing take."""

    deployment: Deployment
    store: Medium


def node_loss_of(loss: NodeLoss, fallback: Fallback = NOTHING, prices: Prices | None = None) -> Answer:
    """Shares of prompt tokens, and with `prices` the seconds until such a prefix is there.

    Raises ConfigError: more copies, or more lost, than there are nodes."""
    for name, value in (("replicas", loss.replicas), ("lost", loss.num_lost)):
        if value > loss.num_nodes:
            raise ConfigError(f"{name} is {value}, must be at most the number of nodes, {loss.num_nodes}")
    title = "A store node is lost" if loss.num_lost == 1 else f"{loss.num_lost} store nodes are lost"
    assumed: tuple[str, ...] = ("chunks are placed by rendezvous hashing",)
    if not loss.num_chunks:
        return Answer(title, (), never_stored(loss.num_tokens, loss.chunk_tokens), assumed)
    is_late = _is_late(loss, fallback, prices)
    figures = _shares(loss, fallback, used=0.0 if is_late else fallback.found)
    if prices is not None:
        figures += _seconds(loss, fallback, prices)
        assumed = (*assumed, *prices.deployment.assumptions, prices.store.source)
        if fallback.medium is not None:
            assumed = (*assumed, fallback.medium.source)
    return Answer(title, tuple(figures), _conclusion(loss, fallback, prices), assumed)


def _shares(loss: NodeLoss, fallback: Fallback, used: float) -> list[Figure]:
    kept, lost = 1.0 - loss.gone, 1.0 - loss.found
    ways = (
        f"{comb(loss.num_lost, loss.replicas)} / {comb(loss.num_nodes, loss.replicas)} ways to place "
        f"{loss.replicas} of {loss.num_nodes}"
    )
    again = f"{lost:.3g} x {loss.hit_share:.3g} of hits"
    figures = [
        Figure("chunks that are gone", loss.gone, "share", ways),
        Figure(
            f"of a prefix of {loss.num_chunks} chunks still found",
            loss.found,
            "share",
            f"mean over its chunks of {kept:.3g}^place: all before a chunk must be there",
        ),
    ]
    if fallback.found:
        figures.append(
            Figure(f"of the rest, found in {fallback.text}", fallback.found, "share", "as was said")
        )
        again += f" x (1 - {used:.3g})"
    computed = lost * loss.hit_share * (1.0 - used)
    return [*figures, Figure("prompt tokens computed again", computed, "share", again)]


def _seconds(loss: NodeLoss, fallback: Fallback, prices: Prices) -> list[Figure]:
    prefill, kv = prices.deployment.prefill.cost, prices.deployment.stored
    whole, kept, compute_s = loss.num_stored, loss.num_kept, _rest_computed_s(loss, prices)
    store = prices.store.cost_for(prices.deployment.num_gpus)
    before_s = store.seconds(kv.bytes_of(whole))
    left_s = store.seconds(kv.bytes_of(kept)) if kept else 0.0
    if (behind_s := _rest_loaded_s(loss, fallback, prices)) is not None:
        rest_s = min(behind_s, compute_s)
        how = (
            f"the sooner of {behind_s:.4g} s to load the rest from behind and {compute_s:.4g} s to compute it"
        )
    else:
        rest_s = compute_s * (1.0 - fallback.found)
        less = f" x (1 - {fallback.found:.3g})" if fallback.found else ""
        how = f"{compute_s:.4g} s{less} to compute the rest"
    bytes_ = f"{kv.bytes_of(whole):,} bytes from the store"
    return [
        Figure("until the prefix is there, before", before_s, "s", bytes_),
        Figure("until it is there, after", left_s + rest_s, "s", f"{left_s:.4g} s for what is left + {how}"),
        Figure("computing all of it", prefill.seconds(whole), "s", f"{whole:,} tokens"),
    ]


def _rest_computed_s(loss: NodeLoss, prices: Prices) -> float:
    return prices.deployment.prefill.cost.seconds(loss.num_stored, loss.num_kept)


def _rest_loaded_s(loss: NodeLoss, fallback: Fallback, prices: Prices) -> float | None:
    """From the store behind; None: there is none."""
    if fallback.medium is None:
        return None
    kv, cost = prices.deployment.stored, fallback.medium.cost_for(prices.deployment.num_gpus)
    return cost.seconds(kv.bytes_of(loss.num_stored) - kv.bytes_of(loss.num_kept))


def _is_late(loss: NodeLoss, fallback: Fallback, prices: Prices | None) -> bool:
    """Whether computing the rest is sooner than loading it from the store behind."""
    if prices is None or (behind_s := _rest_loaded_s(loss, fallback, prices)) is None:
        return False
    return behind_s > _rest_computed_s(loss, prices)


def _conclusion(loss: NodeLoss, fallback: Fallback, prices: Prices | None) -> str:
    lost = in_words(1.0 - loss.found, "share")
    if not loss.gone:
        more = in_words(replace(loss, num_lost=loss.num_lost + 1).gone, "share")
        return (
            "Nothing is lost: copies answer at once. What had a copy there has one less until it is stored "
            f"anew: one more node lost before that takes {more} of the chunks."
        )
    if loss.num_lost == loss.num_nodes:
        stored = "until a node is back"
    else:
        stored = "once, and stored anew on the nodes that are left when it is next asked for"
    if fallback.medium is not None:
        if _is_late(loss, fallback, prices):
            return f"{lost} of what the store served is in the store behind it, but is sooner computed."
        return (
            f"{lost} of what the store served comes from the store behind it, and nothing is computed again."
        )
    if fallback.found:
        share = in_words((1.0 - loss.found) * (1.0 - fallback.found), "share")
        return f"{share} of what the store served is computed again, {stored}; host RAM has the rest."
    return f"{lost} of what the store served is computed again, {stored}: no request fails."
