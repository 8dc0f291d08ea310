"""Writes, as JSON, what vLLM's own NIXL scheduler makes of the router's transfer parameters; runs in the
engine's interpreter, without an engine and without nixl.

python nixl_handshake.py <output file> <parameters for prefill, JSON>
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.v1.request import RequestStatus

NUM_TOKENS = 40
BLOCKS = ([7, 8, 9],)


def scheduler(name: str) -> Any:
    """As an engine of one worker and one full-attention group has it."""
    parallel = SimpleNamespace(
        tensor_parallel_size=1,
        decode_context_parallel_size=1,
        pipeline_parallel_size=1,
        data_parallel_index=0,
    )
    group = SimpleNamespace(kv_cache_spec=SimpleNamespace(prefix_replay_tokens=0, block_size=16))
    config = SimpleNamespace(
        parallel_config=parallel,
        cache_config=SimpleNamespace(block_size=16),
        kv_transfer_config=SimpleNamespace(
            get_from_extra_config=lambda name, default: default, kv_buffer_device="cpu"
        ),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=True),
        num_prefill_lookahead_tokens=0,
    )
    caches = SimpleNamespace(
        transfer_groups=[group],
        kv_cache_groups=[group],
        has_mamba_layers=False,
        select_transfer_block_ids=lambda blocks: blocks,
    )
    return NixlPullConnectorScheduler(config, name, caches)


def request(params: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(
        request_id="cmpl-r",
        kv_transfer_params=params,
        prompt_token_ids=list(range(NUM_TOKENS)),
        num_prompt_tokens=NUM_TOKENS,
        num_computed_tokens=NUM_TOKENS,
        status=RequestStatus.FINISHED_LENGTH_CAPPED,
    )


def handshake(params: dict[str, Any]) -> dict[str, Any]:
    """The answer's parameters, and what a decode engine does with them once they went over HTTP."""
    prefill, decode = scheduler("p"), scheduler("d")
    asked = request(params)
    first = prefill.get_num_new_matched_tokens(asked, 0)
    keeps, answered = prefill.request_finished(asked, BLOCKS)
    told = request(json.loads(json.dumps(answered)))
    return {
        "prefill_loads": first[0],
        "prefill_keeps_blocks": keeps,
        "answered": answered,
        "decode_loads": decode.get_num_new_matched_tokens(told, 0),
        "decode_loads_besides": decode.get_num_new_matched_tokens(told, 16),
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(handshake(json.loads(sys.argv[2]))))
