"""Small questions with one answer each, on the arithmetic of `break_even`."""

from collections.abc import Mapping
from dataclasses import dataclass

from anbar.plan.answer import Answer, Figure, in_words
from anbar.plan.break_even import Tenant, Throughput, bandwidth_needed, length_needed
from anbar.plan.deployment import Deployment
from anbar.plan.kv_size import KvSize
from anbar.plan.media import Medium

LENGTHS = (1024, 8192, 32_768, 131_072)
_MAX_TOKENS = 1_048_576


def kv_size_of(deployment: Deployment, num_tokens: int) -> Answer:
    """How large is the KV of so many tokens, and how many fit."""
    size, held = deployment.kv, deployment.held
    pool, needed, asked = deployment.kv_pool_bytes, size.bytes_of(num_tokens), f"{num_tokens:,} tokens"
    figures = [
        Figure("KV of one token", size.bytes_per_token, "bytes", _layers(size)),
        Figure(f"KV of {asked}", needed, "bytes", _kv_arithmetic(size, num_tokens)),
        Figure("left for KV on the GPUs", pool, "bytes", deployment.pool_arithmetic),
    ]
    kept = f"{pool:,} / {_each_rank(deployment)}"
    if size.windowed_bytes:
        running = f"{pool:,} / {held.bytes_of(num_tokens):,} bytes of each x {num_tokens:,}"
        stored = f"{size.bytes_per_token:,} x {num_tokens:,}: blocks are offloaded before they leave a window"
        figures += [
            Figure(
                "tokens that fit",
                deployment.running_tokens(num_tokens),
                "tokens",
                f"prompts so long: {running}",
            ),
            Figure("tokens kept to be found again", deployment.pool_tokens, "tokens", kept),
            Figure(f"stored of {asked}, at most", size.bytes_per_token * num_tokens, "bytes", stored),
        ]
    else:
        figures.append(Figure("tokens that fit", deployment.pool_tokens, "tokens", kept))
    share = in_words(held.bytes_of(num_tokens) / pool, "share")
    conclusion = f"{num_tokens:,} tokens take {share} of what the GPUs have for KV."
    notes = (size.note,) if size.note else ()
    return Answer("Size of KV", tuple(figures), conclusion, (*notes, _POOL_NOTE, *deployment.assumptions[1:]))


def _layers(size: KvSize) -> str:
    windowed = f" + {size.windowed_bytes:,} in windows" if size.windowed_bytes else ""
    return f"{size.full_bytes:,}{windowed}, all layers"


def _kv_arithmetic(size: KvSize, num_tokens: int) -> str:
    full = f"{size.full_bytes:,} x {num_tokens:,}"
    if not size.windowed_bytes:
        return full
    return f"{full} + {size.windowed_bytes:,} x {min(num_tokens, size.window_tokens):,}"


def _each_rank(deployment: Deployment) -> str:
    each, held = deployment.kv_bytes_per_token, deployment.device_bytes_per_token
    return f"{each:,}" if held == each else f"({each:,} x {held // each} ranks that each keep it)"


_POOL_NOTE = "the room for KV is an estimate: vLLM logs the true number of tokens when it starts"


def break_even_of(deployment: Deployment, medium: Medium, chunk_tokens: int) -> Answer:
    """From which length, and below which bandwidth, loading loses to computing."""
    prefill, kv = deployment.prefill.cost, deployment.stored
    tier = medium.cost_for(deployment.num_gpus)
    rate, latency = in_words(tier.bytes_per_s, "bytes/s"), in_words(tier.latency_s, "s")
    figures = [
        Figure(
            f"bandwidth needed at {length:,} tokens",
            bandwidth_needed(prefill, kv, length, tier.latency_s),
            "bytes/s",
            f"{_kv_arithmetic(kv, length)} bytes / ({prefill.seconds(length):.4g} s - {latency} of latency)",
        )
        for length in LENGTHS
    ]
    shortest = length_needed(prefill, tier, kv, _MAX_TOKENS, chunk_tokens)
    if shortest is None:
        conclusion = f"Loading at {rate} never beats computing here."
    else:
        conclusion = f"Loading at {rate} after {latency} beats computing from {shortest:,} tokens on."
        figures.append(
            Figure(
                "shortest prefix that is sooner loaded",
                shortest,
                "tokens",
                f"{tier.seconds(kv.bytes_of(shortest)):.4g} s against {prefill.seconds(shortest):.4g} s, "
                f"in chunks of {chunk_tokens}",
            )
        )
    return Answer(
        "Break-even of loading", tuple(figures), conclusion, (*deployment.assumptions, medium.source)
    )


def tier_read_of(deployment: Deployment, medium: Medium, num_tokens: int, chunk_tokens: int) -> Answer:
    """Reading so many tokens from a store against computing them. Whole chunks are stored, and what is left
    over is computed in both cases."""
    prefill, kv = deployment.prefill.cost, deployment.stored
    tier, stored = medium.cost_for(deployment.num_gpus), num_tokens // chunk_tokens * chunk_tokens
    compute_s, assumed = prefill.seconds(num_tokens), (*deployment.assumptions, medium.source)
    computing = Figure("computing", compute_s, "s", _prefill_arithmetic(deployment, num_tokens))
    if not stored:
        return Answer("Reading from a tier", (computing,), never_stored(num_tokens, chunk_tokens), assumed)
    load_s = tier.seconds(kv.bytes_of(stored)) + prefill.seconds(num_tokens, stored)
    rate = in_words(tier.bytes_per_s, "bytes/s")
    rest = f" + {prefill.seconds(num_tokens, stored):.4g} s for the rest" if stored < num_tokens else ""
    figures = (
        Figure("KV", kv.bytes_of(stored), "bytes", _kv_arithmetic(kv, stored)),
        Figure("reading", load_s, "s", f"{in_words(tier.latency_s, 's')} + KV / {rate}{rest}"),
        computing,
        Figure("reading / computing", load_s / compute_s, "count", f"{load_s:.4g} / {compute_s:.4g}"),
    )
    if load_s < compute_s:
        conclusion = f"Reading is {compute_s / load_s:.3g} times as fast as computing."
    else:
        conclusion = (
            f"Computing is {load_s / compute_s:.3g} times as fast as reading: such a store helps no "
            "request's latency; at most it saves GPU time, read in the background from disks that are idle."
        )
    return Answer("Reading from a tier", figures, conclusion, assumed)


def never_stored(num_tokens: int, chunk_tokens: int) -> str:
    """What there is to say of a prefix shorter than a chunk."""
    return f"Nothing of {num_tokens:,} tokens is ever stored: a chunk has {chunk_tokens:,}."


def _prefill_arithmetic(deployment: Deployment, num_tokens: int) -> str:
    cost = deployment.prefill.cost
    return (
        f"{cost.overhead_s * 1e3:.3g} ms + {cost.a_s_per_token * 1e6:.4g} µs x {num_tokens:,} + "
        f"{cost.b_s_per_token2 * 1e9:.4g} ns x {num_tokens:,}²"
    )


def tenant_of(
    deployment: Deployment, medium: Medium, tenant: Tenant, kept_s: float, chunk_tokens: int
) -> Answer:
    """What keeping one prompt prefix below the device saves."""
    prefill, kv, tier = deployment.prefill.cost, deployment.stored, medium.cost_for(deployment.num_gpus)
    tokens, per_hour, hour = tenant.prefix_tokens, tenant.queries_per_s * 3600.0, 3600.0
    most_s, left = per_hour * prefill.seconds(tokens), tenant.left_to_tier(kept_s)
    stored = Tenant(tokens // chunk_tokens * chunk_tokens, tenant.queries_per_s)
    load_s, once_s = tier.seconds(kv.bytes_of(stored.prefix_tokens)), stored.saved_s(prefill, tier, kv)
    saved_s = per_hour * left * once_s if stored.prefix_tokens else 0.0
    figures = (
        Figure("KV of the prefix", kv.bytes_of(tokens), "bytes", _kv_arithmetic(kv, tokens)),
        Figure(
            "prefixes like it that the GPUs hold",
            deployment.pool_tokens / tokens,
            "count",
            f"({deployment.pool_arithmetic}) / ({_each_rank(deployment)} x {tokens:,})",
        ),
        Figure(
            "tokens not computed an hour, at most", tokens * per_hour, "tokens", f"{tokens:,} x {per_hour:g}"
        ),
        Figure(
            "GPU time that is an hour",
            most_s,
            "s",
            f"{per_hour:g} x ({_prefill_arithmetic(deployment, tokens)})",
        ),
        Figure("of that in the GPU's time", most_s / hour, "share", f"{most_s:.4g} s / 3600 s"),
        Figure(
            "queries that the GPU has not kept it for",
            left,
            "share",
            f"exp(-{kept_s:g} s / {1 / tenant.queries_per_s:.3g} s between queries)",
        ),
        Figure(
            "loading it once",
            load_s,
            "s",
            f"{in_words(tier.latency_s, 's')} + {_kv_arithmetic(kv, stored.prefix_tokens)} bytes / "
            f"{in_words(tier.bytes_per_s, 'bytes/s')}",
        ),
        Figure(
            "saved by the tier an hour",
            saved_s,
            "s",
            f"{left:.3g} x {per_hour:g} x ({once_s + load_s:.4g} s of computing, less what every step "
            f"costs, - {load_s:.4g} s of loading)",
        ),
    )
    if not stored.prefix_tokens:
        conclusion = never_stored(tokens, chunk_tokens)
    elif once_s <= 0.0:
        computed = in_words(once_s + load_s, "s")
        conclusion = f"Nothing is saved: loading takes {in_words(load_s, 's')}, computing {computed}."
    else:
        conclusion = _tenant_conclusion(left, saved_s / hour)
    if most_s > hour:
        conclusion += " Without any cache one engine could not answer so many queries."
    return Answer("One tenant's prefix", figures, conclusion, (*deployment.assumptions, medium.source))


def _tenant_conclusion(left: float, saved: float) -> str:
    """Where loading is sooner: by the share of queries left to a tier, and of an engine's time saved."""
    if left < _RARE:
        return "Nothing is saved: it is asked for so often that the GPU keeps it itself."
    if saved < 0.01:
        return (
            f"This prefix alone does not justify a tier: it saves {in_words(saved, 'share')} of one engine. "
            "More prefixes than the GPUs hold, or engines that do not get each other's queries, may."
        )
    return f"The tier saves {in_words(saved, 'share')} of one engine's time."


_RARE = 0.001
"""Share of queries below which they count for nothing."""


SCHEDULER_S_PER_CHUNK = 10e-6
"""Of the engine's scheduler, to look up and to store one chunk (`make bench NAME=tier-overhead`)."""


@dataclass(frozen=True, slots=True)
class Storing:
    """What is asked of offload in the background."""

    tokens_per_s: float
    """Of prompts, computed and stored by one engine."""
    medium: Medium
    """Where it goes, and comes from."""
    overhead: float
    """Share of the throughput that storing takes."""
    prefill_share: float
    """Of the device's time, without a tier."""
    chunk_tokens: int = 256


def offload_of(deployment: Deployment, storing: Storing) -> Answer:
    """Where the cost of storing all that is computed hides, and what hits pay for it."""
    kv, gpu, num = deployment.stored, deployment.gpu, deployment.num_gpus
    tokens_per_s, tier = storing.tokens_per_s, storing.medium.cost_for(num)
    rate, chunks = tokens_per_s * kv.bytes_per_token, tokens_per_s / storing.chunk_tokens
    link, compute_s = rate / (num * gpu.host_bytes_per_s), deployment.prefill.cost.seconds(_TYPICAL)
    load_s = tier.seconds(kv.bytes_of(_TYPICAL))
    throughput = Throughput(storing.overhead, storing.prefill_share, load_s / compute_s)
    figures = [
        Figure("KV written", rate, "bytes/s", f"{tokens_per_s:g} tokens/s x {kv.bytes_per_token:,} bytes"),
        Figure(
            "of the prompt tokens that the GPUs can compute",
            tokens_per_s * compute_s / _TYPICAL,
            "share",
            f"{tokens_per_s:g} tokens/s / ({_TYPICAL:,} tokens in {compute_s:.4g} s)",
        ),
        Figure(
            "of the link to the host",
            link,
            "share",
            f"over {num} x {in_words(gpu.host_bytes_per_s, 'bytes/s')}",
        ),
        Figure(
            "of the host's memory", 2 * rate, "bytes/s", "written by the GPU, and read on its way to a store"
        ),
        Figure(
            "of the GPUs' memory, taken from decodes",
            rate / (num * gpu.memory_bytes_per_s),
            "share",
            f"over {num} x {in_words(gpu.memory_bytes_per_s, 'bytes/s')}: decodes are bound by it",
        ),
        Figure(
            "of the scheduler's thread",
            chunks * SCHEDULER_S_PER_CHUNK,
            "share",
            f"{chunks:.4g} chunks/s x {SCHEDULER_S_PER_CHUNK * 1e6:g} µs",
        ),
    ]
    if not storing.medium.for_each_gpu:
        how = f"over {in_words(tier.bytes_per_s, 'bytes/s')}, as fast as it is read"
        figures.append(Figure("of what the store takes", rate / tier.bytes_per_s, "share", how))
    hits_how = (
        f"{storing.overhead:g} / ({storing.prefill_share:g} x (1 - {load_s:.4g} s / {compute_s:.4g} s)): "
        f"overhead / (prefill's share x (1 - loading / computing {_TYPICAL:,} tokens))"
    )
    figures.append(Figure("hits that pay for it", throughput.hits_needed(), "share", hits_how))
    shares = {figure.name: figure.value for figure in figures}
    return Answer(
        "Asynchronous offload",
        tuple(figures),
        _offload_conclusion(shares, throughput),
        (*deployment.assumptions, storing.medium.source),
    )


def _offload_conclusion(shares: Mapping[str, float], throughput: Throughput) -> str:
    """The first limit that is met."""
    if (asked := shares["of the prompt tokens that the GPUs can compute"]) > 1.0:
        return f"These GPUs do not compute so much: that is {in_words(asked, 'share')} of what they can."
    if shares["of the link to the host"] > _BUSY:
        return "The link is the limit: stores wait for it, and blocks stay pinned while they do."
    if throughput.load_ratio >= 1.0:
        return "It never pays: loading takes as long as computing."
    if (store := shares.get("of what the store takes", 0.0)) > _BUSY:
        return (
            f"The store is the limit: that is {in_words(store, 'share')} of what it takes. What has not come "
            "twice is kept out of it while its way is full."
        )
    if (needed := throughput.hits_needed()) > 1.0:
        most = in_words(throughput.prefill_share * (1.0 - throughput.load_ratio), "share")
        return (
            f"It never pays: storing takes {in_words(throughput.store_overhead, 'share')} of the throughput, "
            f"and finding every prompt saves {most} of the time."
        )
    return f"Storing pays from {in_words(needed, 'share')} of prompt tokens found in the tier alone."


_TYPICAL = 8192
"""Tokens at which loading is compared with computing."""
_BUSY = 0.7
"""Share of a link beyond which what is sent waits for what was sent before."""
