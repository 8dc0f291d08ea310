"""What calls on stores cost where no cost file says so, by kind of store.

Estimates from what is published, for one of the two calls that an engine makes at a time; nothing here was
measured on the machine. A cost file's `stores` comes first.
"""

from collections.abc import Mapping

from anbar.config.stores import StoreKind
from anbar.core.cost import StoreCost, TierCost

STORES: Mapping[str, StoreCost] = {
    StoreKind.FILES: StoreCost(0.0003, TierCost(0.0003, 1.5e9), TierCost(0.0005, 1.0e9)),
    StoreKind.VALKEY: StoreCost(0.0005, TierCost(0.001, 1.5e9), TierCost(0.001, 1.5e9)),
    StoreKind.S3: StoreCost(0.03, TierCost(0.1, 0.7e9), TierCost(0.1, 0.7e9)),
}
"""files: a local NVMe drive at half of what data sheets of PCIe 4 drives say, 7 and 5 GB/s.
valkey: a link of 25 Gbit/s, which two calls fill, and a round trip of 0.2 ms beside the server's time; on
loopback one call does 3.3 GB/s (docs/decisions/016-valkey.md).
s3: AWS names 100 to 200 ms for the first byte of an object and 85 to 90 MB/s for one request (Best practices
design patterns: optimizing Amazon S3 performance); `s3.concurrency` of 16 is shared by two calls."""

FREE = StoreCost()
"""A store that takes no time."""
