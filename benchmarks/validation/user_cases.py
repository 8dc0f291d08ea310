"""The twelve situations that people have reported, and the verdict that each should get, for which reason.

Figures of the reports are in the inputs; what a report does not say (GPU, number of rounds) is chosen so that
its own figures come out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from anbar.core.cost import PrefillCost, TierCost
from anbar.plan.catalogue import MODELS
from anbar.plan.deployment import Deployment
from anbar.plan.facts import Facts
from anbar.plan.media import MEDIA, Medium
from anbar.plan.options import Options
from anbar.plan.reasons import Choice, Kind, decide
from anbar.plan.stack import Stack, StoreTier
from anbar.plan.synthetic import chats, documents
from anbar.plan.workload import Workload

GB = 10**9


def engine(name: str, gpu: str, num: int = 1, dtype: str = "bfloat16", kv: str = "bfloat16") -> Deployment:
    return Deployment(name, MODELS[name], gpu, num, dtype, kv)


@dataclass(frozen=True)
class Case:
    workload: Workload
    stack: Stack
    choice: Choice
    kind: Kind
    words: str = ""
    """In the main reason: the figure that the report turns on."""


LLAMA = engine("Llama-3.1-70B", "H100", 2, "fp8")
CYCLE = documents(50, 10_000, 4, num_answer=1)
REDIS = Medium(TierCost(0.001, 16_384 * 262_144 / 20.24), "16,384 tokens of Qwen2.5-32B took 20.24 s")
QWEN32 = Deployment(
    "Qwen2.5-32B", MODELS["Qwen2.5-32B"], "A100-80GB", 1, "bfloat16", measured=PrefillCost(7.67 / 16_384)
)
MISTRAL = engine("Mistral-7B", "H100")
DISK = Medium(TierCost(0.01, 1.2 * GB), "a slow local disk", is_local=True)
SSD = Medium(TierCost(0.0014, 0.35 * GB), "an SSD that reads slower than computing", is_local=True)
REMOTE = MEDIA["valkey-25gbe"]
SMALL = engine("Llama-3.1-8B", "H100")

CASES = {
    "1 cycle of documents": Case(
        CYCLE,
        Stack(LLAMA, host_bytes=120 * GB, concurrency=1),
        Choice.NEITHER,
        Kind.TIER_TOO_SMALL,
        "164 GB an engine would pay",
    ),
    "1 with all of it": Case(
        CYCLE, Stack(LLAMA, host_bytes=165 * GB, concurrency=1), Choice.NATIVE, Kind.HOST_PAYS
    ),
    "2 host tier below the pool": Case(
        documents(40, 14_800, 4),
        Stack(engine("Qwen2.5-72B", "H100", 2, "fp8"), host_bytes=40 * GB, concurrency=4),
        Choice.NEITHER,
        Kind.HOST_BELOW_POOL,
        "tiers are inclusive",
    ),
    "3 Qwen3-30B-A3B on two 4090": Case(
        chats(20, 5, 6_000, 256),
        Stack(
            engine("Qwen3-30B-A3B", "RTX-4090", 2, "int4"),
            pool_tokens=87_584,
            host_bytes=60 * GB,
            concurrency=10,
        ),
        Choice.NATIVE,
        Kind.HOST_PAYS,
    ),
    "3 Qwen2.5-32B on two 4090": Case(
        chats(20, 5, 6_000, 256),
        Stack(
            engine("Qwen2.5-32B", "RTX-4090", 2, "int4"),
            pool_tokens=18_144,
            host_bytes=60 * GB,
            concurrency=10,
        ),
        Choice.NEITHER,
        Kind.POOL_TOO_SMALL,
        "Lower the concurrency",
    ),
    "4 ten users that fit": Case(
        chats(10, 5, 8_192, 2_048),
        Stack(engine("Qwen3-8B", "H100"), host_bytes=40 * GB, concurrency=10),
        Choice.NEITHER,
        Kind.FITS_DEVICE,
        "prefix caching in HBM already has them",
    ),
    "5 prompts of 47 tokens": Case(
        documents(10, 47, 50),
        Stack(SMALL, host_bytes=100 * GB, concurrency=4),
        Choice.NEITHER,
        Kind.BELOW_CHUNK,
        "less than one chunk (256 tokens; the longest prompt has 47)",
    ),
    "6 one prompt again and again": Case(
        documents(1, 14_808, 50),
        Stack(SMALL, host_bytes=100 * GB, concurrency=1),
        Choice.NEITHER,
        Kind.FITS_DEVICE,
        "prefix caching in HBM already has them",
    ),
    "7 two engines through Redis": Case(
        documents(21, 16_384, 4),
        Stack(
            QWEN32,
            2,
            host_bytes=100 * GB,
            has_affinity=False,
            store=StoreTier("redis", REDIS),
            concurrency=2,
        ),
        Choice.NATIVE,
        Kind.SLOW_STORE,
        "brings 212 MB/s, below the 560 MB/s",
    ),
    "8 a slow local disk": Case(
        documents(50, 16_000, 4),
        Stack(MISTRAL, host_bytes=0, store=StoreTier("disk", DISK), concurrency=1),
        Choice.NEITHER,
        Kind.SLOW_STORE,
    ),
    "8 with host RAM": Case(
        documents(50, 16_000, 4),
        Stack(MISTRAL, host_bytes=120 * GB, store=StoreTier("disk", DISK), concurrency=1),
        Choice.NATIVE,
        Kind.HOST_PAYS,
    ),
    "9 more hits, later first tokens": Case(
        documents(50, 20_000, 9),
        Stack(SMALL, host_bytes=64 * GB, store=StoreTier("ssd", SSD), concurrency=1),
        Choice.NEITHER,
        Kind.SLOW_STORE,
        "hits would go from 0 % to 88.",
    ),
    "10 a host tier of 3.3M tokens": Case(
        documents(67, 90_000, 4),
        Stack(engine("Qwen3-8B", "H200", 8), pool_tokens=5_290_000, host_bytes=500 * GB, concurrency=8),
        Choice.NEITHER,
        Kind.HOST_BELOW_POOL,
        "holds 3,390,842 tokens, the GPU's pool 5,290,000",
    ),
    "11 four L4 at 4.1 requests a second": Case(
        documents(100, 3_000, 4, num_answer=256, every_s=1 / 4.1),
        Stack(engine("Llama-3.1-8B", "L4"), 4, host_bytes=48 * GB),
        Choice.NEITHER,
        Kind.OVERLOAD,
        "More engines, or admission",
    ),
    "12 a store 50 ms away": Case(
        documents(301, 2_048, 4, num_answer=8),
        Stack(
            SMALL,
            2,
            host_bytes=150 * GB,
            has_affinity=False,
            store=StoreTier("valkey-25gbe", REMOTE, round_trip_s=0.05),
            concurrency=32,
        ),
        Choice.NATIVE,
        Kind.ROUND_TRIPS,
        "have 1,792 tokens, and loading wins from 83,200 tokens on",
    ),
}


@dataclass(frozen=True, slots=True)
class Judged:
    """What a case should get, and what it got."""

    name: str
    expected: str
    got: str
    reason: str
    agrees: bool
    """Verdict, kind of the main reason, and its figure."""


def judge() -> Iterator[Judged]:
    """All of them."""
    for name, case in CASES.items():
        choice, reasons = decide(Facts(Options(case.workload, case.stack)))
        main = reasons[0]
        agrees = (choice, main.kind) == (case.choice, case.kind) and case.words in main.text
        yield Judged(name, case.choice.value, choice.value, main.text, agrees)
