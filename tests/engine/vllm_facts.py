"""Writes, as JSON, what the plugin relies on in the installed vLLM; runs in the engine's interpreter.

python vllm_facts.py <output file>
"""

import dataclasses
import enum
import importlib
import inspect
import json
import re
import sys
from pathlib import Path

CLASSES = {
    "vllm.v1.kv_offload.base": [
        "BlockIDsLoadStoreSpec",
        "CanonicalKVCacheRef",
        "CanonicalKVCacheTensor",
        "CanonicalKVCaches",
        "GPULoadStoreSpec",
        "Locality",
        "LookupResult",
        "Medium",
        "OffloadPolicy",
        "OffloadingCounterMetadata",
        "OffloadingEvent",
        "OffloadingGaugeMetadata",
        "OffloadingKVEventsConfig",
        "OffloadingSpec",
        "OffloadingWorker",
        "ReqContext",
        "RequestOffloadingContext",
        "ScheduleEndContext",
        "TransferResult",
    ],
    "vllm.v1.kv_offload.config": [
        "OffloadingCacheConfig",
        "OffloadingConfig",
        "OffloadingGroupConfig",
        "OffloadingModelConfig",
        "OffloadingParallelConfig",
    ],
    "vllm.v1.kv_offload.cpu.shared_offload_region": ["SharedOffloadRegion"],
    "vllm.v1.kv_offload.tiering.base": ["JobResult", "SecondaryTierManager", "TransferJob"],
    "vllm.v1.kv_offload.tiering.factory": ["SecondaryTierFactory"],
    "vllm.v1.kv_offload.tiering.spec": ["TieringOffloadingSpec"],
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics": ["OffloadingConnectorStats"],
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector": ["OffloadingConnector"],
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler": ["OffloadingConnectorScheduler"],
    "vllm.v1.kv_offload.tiering.manager": ["TieringOffloadingManager"],
    "vllm.v1.core.sched.output": ["CachedRequestData", "NewRequestData", "SchedulerOutput"],
    "vllm.distributed.kv_events": ["BlockRemoved", "BlockStored"],
    "vllm.config": ["ModelConfig", "VllmConfig"],
}


def describe(cls: type) -> dict[str, object]:
    """Enum members, or fields, constructor, abstract and public methods with their parameters."""
    if issubclass(cls, enum.Enum):
        return {"members": [member.name for member in cls]}
    methods = {
        name: [p for p in inspect.signature(member).parameters if p != "self"]
        for name, member in inspect.getmembers(cls, inspect.isroutine)
        if not name.startswith("_") and getattr(member, "__module__", "").startswith("vllm")
    }
    fields = [f.name for f in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    return {
        "fields": fields or list(getattr(cls, "__struct_fields__", ())),
        "init": [p for p in inspect.signature(cls.__init__).parameters if p != "self"],
        "abstract": sorted(getattr(cls, "__abstractmethods__", ())),
        "methods": methods,
        "attributes": sorted(_attributes(cls)),
    }


def _attributes(cls: type) -> set[str]:
    """Names that the class and its bases in vLLM assign to self."""
    bases = [base for base in cls.__mro__ if base.__module__.startswith("vllm")]
    sources = (inspect.getsource(base) for base in bases if not dataclasses.is_dataclass(base))
    return {name for source in sources for name in re.findall(r"self\.(\w+)(?:: [^=\n]+)? =", source)}


def main(output: Path) -> None:
    facts: dict[str, object] = {"version": importlib.import_module("vllm").__version__}
    for module, names in CLASSES.items():
        for name in names:
            facts[name] = describe(getattr(importlib.import_module(module), name))
    output.write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
