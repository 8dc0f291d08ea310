"""Small questions with one answer each, on the arithmetic of `break_even`."""

from anbar.core.errors import ConfigError
from anbar.plan.answer import Answer, Figure, in_words
from anbar.plan.break_even import Tenant, Throughput, bandwidth_needed, length_needed
from anbar.plan.deployment import ACTIVATION_BYTES, USABLE_SHARE, Deployment
from anbar.plan.kv_size import KvSize, kv_size
from anbar.plan.media import Medium

LENGTHS = (1024, 8192, 32_768, 131_072)
_MAX_TOKENS = 1_048_576


def kv_size_of(deployment: Deployment, num_tokens: int) -> Answer:
    """How large is the KV of so many tokens, and how many fit."""
    size = kv_size(deployment.config, deployment.kv_dtype)
    each = size.bytes_per_token
    pool, held = deployment.kv_pool_bytes, deployment.device_bytes_per_token
    fits = deployment.pool_tokens
    copies = "" if held == each else f" x {held // each} ranks that each keep it"
    figures = (
        Figure("KV of one token", each, "bytes", _layers(size)),
        Figure(f"KV of {num_tokens:,} tokens", each * num_tokens, "bytes", f"{each:,} x {num_tokens:,}"),
        Figure("left for KV on the GPUs", pool, "bytes", _pool_arithmetic(deployment)),
        Figure("tokens that fit", fits, "tokens", f"{pool:,} / {each:,}{copies}"),
    )
    ratio = num_tokens / fits
    conclusion = f"{num_tokens:,} tokens take {in_words(ratio, 'share')} of what the GPUs have for KV."
    notes = (size.note,) if size.note else ()
    return Answer("Size of KV", figures, conclusion, (*notes, _POOL_NOTE, *deployment.assumptions[1:]))


def _layers(size: KvSize) -> str:
    windowed = f" + {size.windowed_bytes:,} in windows" if size.windowed_bytes else ""
    return f"{size.full_bytes:,}{windowed}, all layers"


_POOL_NOTE = "the room for KV is an estimate: vLLM logs the true number of tokens when it starts"


def _pool_arithmetic(deployment: Deployment) -> str:
    return (
        f"{deployment.num_gpus} x ({USABLE_SHARE} x {deployment.gpu.memory_bytes / 1e9:g} GB - "
        f"{ACTIVATION_BYTES / 1e9:g} GB) - {deployment.weight_bytes / 1e9:.4g} GB of weights"
    )


def break_even_of(deployment: Deployment, medium: Medium, chunk_tokens: int) -> Answer:
    """From which length, and below which bandwidth, loading loses to computing."""
    prefill, kv = deployment.prefill.cost, deployment.kv_bytes_per_token
    tier = medium.cost_for(deployment.num_gpus)
    figures = [
        Figure(
            f"bandwidth needed at {length:,} tokens",
            bandwidth_needed(prefill, kv, length),
            "bytes/s",
            f"{kv:,} x {length:,} bytes / {prefill.seconds(length):.4g} s",
        )
        for length in LENGTHS
    ]
    shortest = length_needed(prefill, tier, kv, _MAX_TOKENS, chunk_tokens)
    rate, latency = in_words(tier.bytes_per_s, "bytes/s"), in_words(tier.latency_s, "s")
    if shortest is None:
        conclusion = f"Loading at {rate} never beats computing here."
    else:
        conclusion = f"Loading at {rate} after {latency} beats computing from {shortest:,} tokens on."
        figures.append(
            Figure(
                "shortest prefix that is sooner loaded",
                shortest,
                "tokens",
                f"{tier.seconds(shortest * kv):.4g} s against {prefill.seconds(shortest):.4g} s, "
                f"in chunks of {chunk_tokens}",
            )
        )
    return Answer(
        "Break-even of loading", tuple(figures), conclusion, (*deployment.assumptions, medium.source)
    )


def tier_read_of(deployment: Deployment, medium: Medium, num_tokens: int) -> Answer:
    """Reading so many tokens from a store against computing them."""
    prefill, kv = deployment.prefill.cost, deployment.kv_bytes_per_token
    tier = medium.cost_for(deployment.num_gpus)
    load_s, compute_s = tier.seconds(kv * num_tokens), prefill.seconds(num_tokens)
    rate = in_words(tier.bytes_per_s, "bytes/s")
    figures = (
        Figure("KV", kv * num_tokens, "bytes", f"{kv:,} x {num_tokens:,}"),
        Figure("reading", load_s, "s", f"{in_words(tier.latency_s, 's')} + KV / {rate}"),
        Figure("computing", compute_s, "s", _prefill_arithmetic(deployment, num_tokens)),
        Figure("reading / computing", load_s / compute_s, "count", f"{load_s:.4g} / {compute_s:.4g}"),
    )
    if load_s < compute_s:
        conclusion = f"Reading is {compute_s / load_s:.3g} times as fast as computing."
    else:
        conclusion = (
            f"Computing is {load_s / compute_s:.3g} times as fast as reading: such a store helps no "
            "request's latency; at most it saves GPU time, read in the background from disks that are idle."
        )
    return Answer("Reading from a tier", figures, conclusion, (*deployment.assumptions, medium.source))


def _prefill_arithmetic(deployment: Deployment, num_tokens: int) -> str:
    cost = deployment.prefill.cost
    return (
        f"{cost.overhead_s * 1e3:.3g} ms + {cost.a_s_per_token * 1e6:.4g} µs x {num_tokens:,} + "
        f"{cost.b_s_per_token2 * 1e9:.4g} ns x {num_tokens:,}²"
    )


def tenant_of(deployment: Deployment, medium: Medium, tenant: Tenant, kept_s: float) -> Answer:
    """What keeping one prompt prefix below the device saves."""
    prefill, kv = deployment.prefill.cost, deployment.kv_bytes_per_token
    hour = 3600.0
    most = tenant.avoidable_tokens_per_s() * hour
    most_s = tenant.queries_per_s * hour * prefill.seconds(tenant.prefix_tokens)
    left = tenant.left_to_tier(kept_s)
    saved_s = hour * tenant.saved_s_per_s(prefill, medium.cost_for(deployment.num_gpus), kv, kept_s)
    per_hour = tenant.queries_per_s * hour
    fits = deployment.kv_pool_bytes / (deployment.device_bytes_per_token * tenant.prefix_tokens)
    figures = (
        Figure("KV of the prefix", kv * tenant.prefix_tokens, "bytes", f"{kv:,} x {tenant.prefix_tokens:,}"),
        Figure("prefixes like it that the GPUs hold", fits, "count", f"{_pool_arithmetic(deployment)} / KV"),
        Figure(
            "tokens not computed an hour, at most", most, "tokens", f"{tenant.prefix_tokens:,} x {per_hour:g}"
        ),
        Figure(
            "GPU time that is an hour",
            most_s,
            "s",
            f"{per_hour:g} x ({_prefill_arithmetic(deployment, tenant.prefix_tokens)})",
        ),
        Figure("of that in the GPU's time", most_s / hour, "share", f"{most_s:.4g} s / 3600 s"),
        Figure(
            "queries that the GPU has not kept it for",
            left,
            "share",
            f"exp(-{kept_s:g} s / {1 / tenant.queries_per_s:.3g} s between queries)",
        ),
        Figure("saved by the tier an hour", saved_s, "s", f"{left:.3g} of the above, less the time to load"),
    )
    if saved_s <= 0.0:
        conclusion = "Nothing is saved: loading takes longer than computing."
    elif saved_s / hour < 0.01:
        conclusion = (
            f"This prefix alone does not justify a tier: it saves {in_words(saved_s / hour, 'share')} of one "
            "engine. More prefixes than the GPUs hold, or engines that do not get each other's queries, may."
        )
    else:
        conclusion = f"The tier saves {in_words(saved_s / hour, 'share')} of one engine's time."
    return Answer("One tenant's prefix", figures, conclusion, (*deployment.assumptions, medium.source))


def node_loss_of(num_nodes: int, replicas: int, num_chunks: int, hit_share: float) -> Answer:
    """What losing one node of a store costs, chunks being spread over nodes one by one."""
    if replicas > num_nodes:
        raise ConfigError(f"replicas is {replicas}, must be at most the number of nodes, {num_nodes}")
    kept = 1.0 if replicas > 1 else 1.0 - 1.0 / num_nodes
    found = sum(kept**place for place in range(1, num_chunks + 1)) / num_chunks
    two = (num_nodes - replicas) / (num_nodes - 1) if num_nodes > 1 and replicas == 2 else 0.0
    lost = 1.0 - found
    figures = (
        Figure(
            "chunks that are gone", 1.0 - kept, "share", f"1 / {num_nodes}" if replicas == 1 else "copies"
        ),
        Figure(
            f"of a prefix of {num_chunks} chunks still found",
            found,
            "share",
            f"mean over its chunks of {kept:.3g}^place: all before a chunk must be there",
        ),
        Figure(
            "prompt tokens computed again", lost * hit_share, "share", f"{lost:.3g} x {hit_share:.3g} of hits"
        ),
    )
    if replicas > 1:
        conclusion = "Nothing is lost: copies answer, and what is read is copied anew."
        if two == 0.0 and replicas == 2:
            conclusion += " A second node lost before that takes everything with it."
    else:
        conclusion = (
            f"{in_words(lost, 'share')} of what the store served is computed again until it is stored anew: "
            "no request fails, and host RAM goes on."
        )
    return Answer("A store node is lost", figures, conclusion, ("chunks are placed by rendezvous hashing",))


SCHEDULER_S_PER_CHUNK = 10e-6
"""Of the engine's scheduler, to look up and to store one chunk (`make bench NAME=tier-overhead`)."""


def offload_of(
    deployment: Deployment, throughput: Throughput, tokens_per_s: float, chunk_tokens: int
) -> Answer:
    """Where the cost of storing all of `tokens_per_s` in the background hides, and what hits pay for it."""
    kv, gpu, num = deployment.kv_bytes_per_token, deployment.gpu, deployment.num_gpus
    rate, chunks = tokens_per_s * kv, tokens_per_s / chunk_tokens
    link = rate / (num * gpu.host_bytes_per_s)
    needed = throughput.hits_needed()
    hits_how = (
        f"{throughput.store_overhead:g} / ({throughput.prefill_share:g} x "
        f"(1 - {throughput.load_ratio:.3g})): overhead / (prefill's share x (1 - load time / prefill time))"
    )
    figures = (
        Figure("KV written", rate, "bytes/s", f"{tokens_per_s:g} tokens/s x {kv:,} bytes"),
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
        Figure("hits that pay for it", needed, "share", hits_how),
    )
    if link > _BUSY:
        conclusion = "The link is the limit: stores wait for it, and blocks stay pinned while they do."
    elif needed > 1.0:
        conclusion = "It never pays: loading takes as long as computing."
    else:
        conclusion = (
            f"Storing pays from {in_words(needed, 'share')} of prompt tokens found in the tier alone."
        )
    return Answer("Asynchronous offload", figures, conclusion, deployment.assumptions)


_BUSY = 0.7
"""Share of a link beyond which what is sent waits for what was sent before."""
