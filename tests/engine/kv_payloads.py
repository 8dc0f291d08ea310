"""Writes, as JSON, what the installed vLLM encodes for KV events of every kind; runs in the engine's
interpreter.

python kv_payloads.py <output file>

Made with vLLM's own classes and the encoder of its publisher's thread. `tests/golden/kv_events.json` has the
same under "0.32", beside what older releases wrote.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

DIGEST = bytes(range(32))


def cases(events: Any) -> dict[str, Any]:
    """Batches by name; `events` is `vllm.distributed.kv_events`."""

    def stored(**fields: object) -> Any:
        base: dict[str, object] = {
            "block_hashes": [1, 2**64 - 1],
            "parent_block_hash": None,
            "token_ids": [1, 2, 3, 4],
            "block_size": 2,
            "lora_id": None,
            "medium": events.MEDIUM_GPU,
            "lora_name": None,
        }
        return events.BlockStored(**{**base, **fields})

    placeholder = {"block_hashes": [5], "token_ids": [], "block_size": 0}
    shared = {"medium": events.MEDIUM_STORAGE, "locality": "REMOTE", "ownership": "anbar:s1"}
    full = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    window = {
        "group_idx": 1,
        "kv_cache_spec_kind": "sliding_window",
        "kv_cache_spec_sliding_window": 512,
    }
    removed = events.BlockRemoved
    return {
        "device": [stored(extra_keys=[("salt-a",), None], session_id="s", **full)],
        "device_lora": [
            stored(
                lora_id=1,
                lora_name="ad",
                parent_block_hash=7,
                group_idx=1,
                extra_keys=[("ad", ("img", 3), "salt"), ("ad", DIGEST)],
            )
        ],
        "device_bytes": [
            stored(
                block_hashes=[DIGEST],
                parent_block_hash=DIGEST[::-1],
                token_ids=[9, 8],
                extra_keys=[None],
                group_idx=0,
            )
        ],
        "groups": [stored(**full), stored(**window), removed([1], events.MEDIUM_GPU, 1)],
        "host_placeholder": [stored(**placeholder, medium=events.MEDIUM_CPU, group_idx=0)],
        "host_described": [stored(medium=events.MEDIUM_CPU, extra_keys=[None, None], group_idx=0)],
        "shared": [stored(**shared, group_idx=0, session_id="s")],
        "local_storage": [
            stored(**placeholder, medium=events.MEDIUM_STORAGE, locality="LOCAL", ownership="fs-0")
        ],
        "removed": [
            removed([5, DIGEST], events.MEDIUM_CPU, 0),
            removed([6], events.MEDIUM_STORAGE, locality="REMOTE", ownership="anbar:s1"),
        ],
        "cleared": [events.AllBlocksCleared()],
    }


def main(output: Path) -> None:
    events = importlib.import_module("vllm.distributed.kv_events")
    encode = msgspec.msgpack.Encoder().encode
    payloads = {}
    for name, batch in cases(events).items():
        ranked = events.KVEventBatch(ts=12.5, events=batch, data_parallel_rank=0)
        payloads[name] = encode(ranked).hex()
    unranked = events.KVEventBatch(ts=12.5, events=[events.AllBlocksCleared()])
    payloads["no_rank"] = encode(unranked).hex()
    output.write_text(json.dumps(payloads, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
