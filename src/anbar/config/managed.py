"""Arguments and variables of vLLM that Anbar sets itself, and the key of anbar.yaml to use instead.

Two sources for one setting would contradict each other silently: argparse lets the last one win.
"""

from collections.abc import Mapping

_CACHE = "cache.mode, cache.host_bytes and cache.store"
_TEMPLATE = "the router renders chats too and would not know: put the template into the model's directory"
_LOCAL = "launched engines serve 127.0.0.1 only: for another set-up start one yourself, attach it by `url`"

MANAGED_ARGS: Mapping[str, str] = {
    "--model": "use launch.model",
    "--served-model-name": "use launch.served_name",
    "--tokenizer": "the router must use the same one: put the tokenizer into the model's directory",
    "--tokenizer-mode": "the router must split text as the engine does, and knows the model's own tokenizer",
    "--chat-template": _TEMPLATE,
    "--chat-template-content-format": _TEMPLATE,
    "--default-chat-template-kwargs": "the router would not know: send chat_template_kwargs in requests",
    "--exclude-tools-when-tool-choice-none": "the router would not know: send such requests without tools",
    "--host": _LOCAL,
    "--port": "use launch.port",
    "--uds": _LOCAL,
    "--api-key": _LOCAL,
    "--root-path": _LOCAL,
    "--ssl-keyfile": _LOCAL,
    "--ssl-certfile": _LOCAL,
    "--ssl-ca-certs": _LOCAL,
    "--headless": _LOCAL,
    "--config": "anbar.yaml is the only source of settings",
    "--dtype": "use launch.dtype",
    "--max-model-len": "use launch.max_model_len",
    "--block-size": "use launch.block_size",
    "--num-gpu-blocks-override": "use launch.num_device_blocks",
    "--kv-cache-memory-bytes": "use launch.kv_cache_bytes",
    "--tensor-parallel-size": "use launch.tensor_parallel",
    "-tp": "use launch.tensor_parallel",
    "--data-parallel-size": "use launch.count: the router balances engines itself",
    "-dp": "use launch.count: the router balances engines itself",
    "--kv-transfer-config": f"use {_CACHE}, or router.split.via",
    "--kv-events-config": "Anbar sets it: routing depends on it",
    "--kv-offloading-size": f"use {_CACHE}",
    "--kv-offloading-backend": f"use {_CACHE}",
    "--enable-prompt-tokens-details": "Anbar always sets it",
    "--prefix-caching-hash-algo": "engines that share a store must hash alike: vLLM's default is kept",
}

EMULATED_ARGS: Mapping[str, str] = {
    "--count": "use launch.count: each emulated engine is a process of its own",
}
"""The same of `anbar emulate`'s own arguments."""

MANAGED_ENV: Mapping[str, str] = {
    "VLLM_CPU_KVCACHE_SPACE": "use launch.kv_cache_bytes",
    "VLLM_RPC_BASE_PATH": "Anbar keeps the engines' sockets where it can remove them",
    "TMPDIR": "set it for `anbar up` as a whole",
    "VLLM_PORT": "use launch.port",
    "VLLM_API_KEY": _LOCAL,
    "VLLM_NIXL_SIDE_CHANNEL_HOST": _LOCAL,
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "it is launch.port and 10000",
    "VLLM_USE_SIMPLE_KV_OFFLOAD": f"use {_CACHE}",
    "PYTHONHASHSEED": "engines that share a store must agree on it: set it for `anbar up` as a whole",
}


def managed_flag(argument: str) -> str | None:
    """The managed flag that `argument` sets, else None.

    vLLM's parser also takes underscores, `--flag=value`, `--flag.key value`, and any unambiguous beginning;
    `--no-flag` switches a flag off.
    """
    if not argument.startswith("-"):
        return None
    flag = argument.split("=", 1)[0]
    if not flag.startswith("--"):
        return next((short for short in MANAGED_ARGS if not short.startswith("--") and flag == short), None)
    flag = flag.split(".", 1)[0].replace("_", "-")
    if flag.startswith("--no-"):
        flag = f"--{flag.removeprefix('--no-')}"
    if flag in MANAGED_ARGS:
        return flag
    return next((full for full in MANAGED_ARGS if len(flag) > 4 and full.startswith(flag)), None)
