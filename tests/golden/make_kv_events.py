"""Writes `kv_events.json`: payloads of vLLM's KV events, by release and case, as hexadecimal msgpack.

python -m tests.golden.make_kv_events PAYLOADS

PAYLOADS is what `tests/engine/kv_payloads.py` wrote in an interpreter with vLLM 0.32, whose own classes
encode it; `tests/engine/test_kv_payloads.py` holds the installed vLLM to it. The older ones are put together
here from what the releases declared in `vllm/distributed/kv_events.py`:

- 0.9 (May 2025): tagged arrays `[type, hashes, parent, tokens, block size, LoRA id]`, integer hashes
  (signed, as Python's `hash` gives them), a batch `[ts, events]`.
- 0.11: the medium behind the LoRA id, and behind a removal's hashes; the batch's data-parallel rank; hashes
  may be whole digests.
- 0.15: the LoRA's name behind the medium.
- 2026-03, from #33304 on: extra keys, cache group and the kind of its specification behind the name; a group
  in removals.
- June 2026, between #42892 and its last form, not in a release: events as maps with `type`, and the batch a
  map too.
- 0.26: events as maps in a batch that is an array; media of storage named FS and OBJ. A payload of 0.26.0 in
  volcano-sh/kthena#1535 has this shape.
"""

import json
import sys
from pathlib import Path

import msgspec

GOLDEN = Path(__file__).with_name("kv_events.json")
DIGEST = bytes(range(32))
TOKENS = [1, 2, 3, 4]


def map_stored(**fields: object) -> dict[str, object]:
    """An event of 0.26 in the order of its fields, defaults left out."""
    event: dict[str, object] = {
        "type": "BlockStored",
        "block_hashes": [1, 2**64 - 1],
        "parent_block_hash": None,
        "token_ids": TOKENS,
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    return event | fields


def older() -> dict[str, dict[str, object]]:
    """release → case → payload, not encoded."""
    spec = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    named = ["BlockStored", [1, 2**64 - 1], None, TOKENS, 2, None, "GPU", None]
    placeholder = {"block_hashes": [5], "token_ids": [], "block_size": 0}
    return {
        "0.9": {
            "device": [12.5, [["BlockStored", [1, -1], None, TOKENS, 2, None]]],
            "removed": [12.5, [["BlockRemoved", [-1]]]],
            "cleared": [12.5, [["AllBlocksCleared"]]],
        },
        "0.11": {
            "device": [12.5, [["BlockStored", [1, 2**64 - 1], None, TOKENS, 2, None, "GPU"]], 0],
            "device_bytes": [12.5, [["BlockStored", [DIGEST], DIGEST[::-1], [9, 8], 2, None, "GPU"]], 1],
            "host_placeholder": [12.5, [["BlockStored", [5], None, [], 0, None, "CPU"]], 0],
            "removed": [12.5, [["BlockRemoved", [DIGEST], "GPU"], ["BlockRemoved", [5], "CPU"]], 0],
            "cleared": [12.5, [["AllBlocksCleared"]], 0],
        },
        "0.15": {
            "device_lora": [12.5, [["BlockStored", [1, 2**64 - 1], 7, TOKENS, 2, 1, "GPU", "ad"]], 0],
        },
        "2026-03": {
            "device": [
                12.5,
                [[*named, [["salt-a"], None], 0, "full_attention"]],
                0,
            ],
            "groups": [
                12.5,
                [
                    [*named, [None, None], 1, "sliding_window", 512],
                    ["BlockRemoved", [1], "GPU", 1],
                ],
                0,
            ],
        },
        "2026-06": {
            "device": {"ts": 12.5, "events": [map_stored()], "data_parallel_rank": 0},
            "cleared": {"ts": 12.5, "events": [{"type": "AllBlocksCleared"}]},
        },
        "0.26": {
            "device": [12.5, [map_stored(extra_keys=[["salt-a"], None], **spec)], 0],
            "files": [12.5, [map_stored(**placeholder, medium="FS")], 0],
            "objects": [12.5, [map_stored(**placeholder, medium="OBJ")], 0],
            "removed": [12.5, [{"type": "BlockRemoved", "block_hashes": [5], "medium": "FS"}], 0],
            "cleared": [12.5, [{"type": "AllBlocksCleared"}], 0],
        },
    }


def main(recorded: Path) -> None:
    encode = msgspec.msgpack.Encoder().encode
    golden = {
        release: {name: encode(payload).hex() for name, payload in batches.items()}
        for release, batches in older().items()
    }
    golden["0.32"] = json.loads(recorded.read_text())
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
