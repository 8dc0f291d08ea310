"""What KV can be kept on, and how fast it comes back: published measurements, each with its source."""

from collections.abc import Mapping
from dataclasses import dataclass

from anbar.core.cost import TierCost
from anbar.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Medium:
    """One kind of store as an engine sees it."""

    cost: TierCost
    """Of one replica's reads, several in flight."""
    source: str
    for_each_gpu: bool = False
    """Each of an engine's GPUs has such a link of its own, for its part of the KV."""
    is_local: bool = False
    """In one machine: engines on others do not see it."""

    def cost_for(self, num_gpus: int) -> TierCost:
        """Of an engine on so many GPUs."""
        links = num_gpus if self.for_each_gpu else 1
        return TierCost(self.cost.latency_s, links * self.cost.bytes_per_s)


_FIO = "fio with O_DIRECT, one file per block, 16 jobs (natoscott/benchmarks, storage-offload-eval)"

MEDIA: Mapping[str, Medium] = {
    "host-pcie5": Medium(
        TierCost(0.015, 44.3e9), "vLLM's blog of 2026-01-08: Llama-3.1-8B, H100, 2 MB pieces", True
    ),
    "host-pcie4": Medium(
        TierCost(0.015, 25e9), "PCIe gen4 x16, pieces of 1 MB and more; latency as on gen5", True
    ),
    "host-vllm-0.11": Medium(TierCost(0.015, 5e9), "vLLM up to 0.11: pieces of 8-32 KB, 2-8 GB/s", True),
    "nvme-gen4": Medium(TierCost(0.0014, 6.2e9), f"one drive; {_FIO}", is_local=True),
    "valkey-100gbe": Medium(TierCost(0.001, 5e9), "100 Gbit/s, of which 4 connections get 5 GB/s"),
    "valkey-25gbe": Medium(TierCost(0.001, 2.5e9), "25 Gbit/s, less its overhead"),
    "valkey-10gbe": Medium(TierCost(0.001, 1.1e9), "10 Gbit/s, less its overhead"),
    "ceph-rgw-nvme": Medium(TierCost(0.06, 13e9), "an all-NVMe cluster with 9 threads"),
    "ceph-rgw-ssd": Medium(TierCost(0.098, 0.25e9), f"network SSDs; {_FIO}"),
    "cephfs-ssd": Medium(TierCost(0.173, 0.205e9), f"network SSDs; {_FIO}"),
    "ceph-hdd": Medium(TierCost(0.01, 0.0535e9), "one OSD on a spinning disk: 49-58 MB/s"),
    "ceph-hdd-112": Medium(TierCost(0.01, 6e9), "112 OSDs on spinning disks together: 5.5-6.5 GB/s"),
}


def medium_named(name: str) -> Medium:
    """Raises ConfigError with the names there are."""
    if name not in MEDIA:
        raise ConfigError(f"medium {name!r} is not known; allowed: {', '.join(MEDIA)}")
    return MEDIA[name]
