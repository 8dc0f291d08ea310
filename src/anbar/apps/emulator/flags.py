"""The command line of `anbar emulate`: vLLM's own flags, as far as they mean something here, and a few more.

vLLM's parser also takes underscores and any unambiguous beginning of a flag; so does this one. A flag that is
not known is not an error: an engine's command line works with another program in front.
"""

import argparse
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from anbar.adapters.vllm.kv_publish import Framing
from anbar.apps.emulator.environment import VARIABLES
from anbar.apps.emulator.flag_values import (
    MAX_PORT,
    amount,
    json_object,
    length,
    lora,
    member,
    runner,
    speed,
    whole,
)
from anbar.apps.emulator.settings import Runner
from anbar.core.errors import ConfigError

MAX_COUNT = 256
"""Engines of one process: they share one core, and each has its sockets."""
BLOCK_SIZE = 16
"""vLLM's default on a GPU."""
AUTO_LEN = -1
"""vLLM's own number for `--max-model-len auto`: as long as the model's, or as fits."""
NUM_SEQS, NUM_BATCHED_TOKENS = 1024, 8192
"""vLLM's defaults of a server on an H100."""
NUM_BLOCKS = 16_384
"""Where no flag says how large the device cache is: what an H100 has beside an 8B model, rounded down."""
MAX_NUM_BLOCKS = 1 << 22
"""About a gigabyte of the emulator's own memory."""
MAX_MODEL_LEN = 8192
"""Where neither a flag nor the model's config.json says it."""
NO_COST = "none"
"""The value of --cost for steps that take no time."""


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line as values; None where vLLM works something out."""

    model: str | None
    served_model_name: tuple[str, ...]
    host: str
    port: int
    api_key: tuple[str, ...]
    runner: Runner
    block_size: int | None
    num_gpu_blocks_override: int | None
    kv_cache_memory_bytes: int | None
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    enable_prefix_caching: bool
    tensor_parallel_size: int
    dtype: str
    kv_events_config: Mapping[str, Any] | None
    kv_transfer_config: Mapping[str, Any] | None
    lora_modules: Mapping[str, str]
    enable_prompt_tokens_details: bool
    enable_per_request_metrics: bool
    enable_request_id_headers: bool
    enable_force_include_usage: bool
    enable_server_load_tracking: bool
    enable_auto_tool_choice: bool
    count: int
    speed: float
    cost: str | None
    """A cost file, or `NO_COST`."""
    seed: int
    framing: Framing
    shared_dir: Path | None
    ignored: tuple[str, ...] = field(default=())
    """What vLLM would have been told and does not matter here."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"command line of anbar emulate: {message}")


def parse(argv: Sequence[str]) -> Flags:
    """The flags of `argv`. ConfigError for values that are not allowed; SystemExit after --help."""
    arguments = [_dashed(argument) for argument in argv]
    if arguments and not arguments[0].startswith("-"):
        arguments.insert(0, "--model")  # as in `vllm serve MODEL`
    found, rest = _parser().parse_known_args(arguments)
    values = vars(found)
    flags = _ignored(arguments, rest)
    if values.pop("task") in ("embed", "embedding"):
        values["runner"] = Runner.POOLING
    for name in ("served_model_name", "api_key"):
        values[name] = tuple(values[name] or ())
    values["lora_modules"] = dict(values["lora_modules"] or ())
    return Flags(**values, ignored=flags)


def _ignored(arguments: Sequence[str], rest: Sequence[str]) -> tuple[str, ...]:
    """The flags of `rest`, what the parser did not know of `arguments`; ConfigError for a word that is no
    value of one of them."""
    unread, may_have_value = deque(rest), False
    for argument in arguments:
        if not unread:
            break
        if argument != unread[0]:
            may_have_value = False
            continue
        unread.popleft()
        if argument.startswith("-"):
            may_have_value = True
        elif not may_have_value:
            raise ConfigError(
                f"command line of anbar emulate: {argument!r} belongs to no flag; a model comes first, or "
                "behind --model"
            )
    return tuple(argument for argument in rest if argument.startswith("-"))


def _dashed(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    flag, equals, value = argument.partition("=")
    return f"{flag.replace('_', '-')}{equals}{value}"


def _parser() -> _Parser:
    parser = _Parser(
        prog="anbar emulate",
        description="An emulated vLLM server: its API, KV events and metrics, without a GPU; answers are "
        "made up. Takes vLLM's command line; flags that do not matter here are named once and ignored.",
        epilog="GET /emulator on its port describes the calls that make it misbehave. Of the environment it "
        f"reads {', '.join(variable.name for variable in VARIABLES)}.",
    )
    _add_own(parser)
    _add_server(parser)
    _add_engine(parser)
    return parser


def _add_own(parser: argparse.ArgumentParser) -> None:
    own = parser.add_argument_group("the emulator's own")
    own.add_argument("--count", type=whole(1, MAX_COUNT), default=1, metavar="N", help="engines in this "
                     f"process, at most {MAX_COUNT}: ports and event addresses are numbered from the given "
                     "ones on")  # fmt: skip
    own.add_argument("--speed", type=speed, default=1.0, metavar="X", help="time passes X times faster")
    own.add_argument("--cost", metavar="FILE", help="what steps cost, as `anbar calibrate` measured; "
                     f"{NO_COST}: nothing; default: those of an 8B model on an H100, estimated")  # fmt: skip
    own.add_argument("--seed", type=whole(), default=0, help="of the answers' text")
    own.add_argument("--framing", type=member(Framing), default=Framing.MAPS, metavar="maps|arrays",
                     help="of KV events: vLLM 0.32's, or that of older releases")  # fmt: skip
    own.add_argument("--shared-dir", type=Path, metavar="DIR", help="where emulated engines note what is in "
                     "the store that they share; default: the engines of this process share one")  # fmt: skip


def _add_server(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("vLLM's, of the server")
    server.add_argument("--model", help="directory with tokenizer.json; default: the small model that `anbar "
                        "model` unpacks, else a tiny built-in tokenizer")  # fmt: skip
    server.add_argument("--served-model-name", nargs="+", metavar="NAME",
                        help="what clients call it; default: --model")  # fmt: skip
    server.add_argument("--host", default="127.0.0.1", help="address to listen on")
    server.add_argument("--port", type=whole(0, MAX_PORT), default=8000, help="0 picks a free one")
    server.add_argument("--api-key", nargs="+", metavar="KEY",
                        help="/v1/... needs one of them; default: VLLM_API_KEY, else none is")  # fmt: skip
    server.add_argument("--runner", type=runner, default=Runner.GENERATE, metavar="generate|pooling",
                        help="completions and chats, or embeddings")  # fmt: skip
    server.add_argument("--task", choices=("generate", "embed", "embedding"), help="embed: --runner pooling; "
                        "default: generate")  # fmt: skip
    server.add_argument("--lora-modules", nargs="+", type=lora, metavar="NAME=PATH",
                        help="adapters from the start; default: none")  # fmt: skip
    server.add_argument("--kv-events-config", type=json_object, metavar="JSON",
                        help="whether and where KV events are published; default: they are not")  # fmt: skip
    server.add_argument("--kv-transfer-config", type=json_object, metavar="JSON",
                        help="the host tier and the store behind it (kv_connector_extra_config), "
                        "or NixlConnector; default: neither")  # fmt: skip
    switches = {
        "--enable-prompt-tokens-details": "usage shows cached_tokens",
        "--enable-per-request-metrics": "answers and usage of streams say how long the engine took",
        "--enable-request-id-headers": "answers carry x-request-id",
        "--enable-force-include-usage": "streams show usage without being asked",
        "--enable-server-load-tracking": "/load counts requests",
        "--enable-auto-tool-choice": "tools are accepted, and called where a request names or requires one",
    }
    for flag, meaning in switches.items():
        server.add_argument(flag, action="store_true", help=meaning)


def _add_engine(parser: argparse.ArgumentParser) -> None:
    engine = parser.add_argument_group("vLLM's, of the engine")
    engine.add_argument("--block-size", type=whole(1), metavar="TOKENS",
                        help=f"of a KV block; default: {BLOCK_SIZE}, or the cost file's")  # fmt: skip
    engine.add_argument("--num-gpu-blocks-override", type=whole(2), metavar="BLOCKS", help="KV blocks of "
                        f"the device; default: {NUM_BLOCKS}, or more if the context needs them")  # fmt: skip
    engine.add_argument("--kv-cache-memory-bytes", type=amount, metavar="BYTES",
                        help="KV of each GPU, in place of blocks; default: not used")  # fmt: skip
    engine.add_argument("--max-model-len", type=length, metavar="TOKENS", help="of a prompt and its answer; "
                        "auto, -1: what fits into the blocks at most; default: max_position_embeddings of "
                        f"config.json, else {MAX_MODEL_LEN}")  # fmt: skip
    engine.add_argument("--max-num-seqs", type=whole(1), help=f"sequences in one step; default: {NUM_SEQS}, "
                        "with a cost file vLLM's of its device")  # fmt: skip
    engine.add_argument("--max-num-batched-tokens", type=amount, help="tokens in one step; default: "
                        f"{NUM_BATCHED_TOKENS}, or the cost file's")  # fmt: skip
    engine.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True,
                        help="keep and reuse KV of equal beginnings")  # fmt: skip
    engine.add_argument("--tensor-parallel-size", "-tp", type=whole(1), default=1,
                        help="GPUs that --kv-cache-memory-bytes is multiplied by")  # fmt: skip
    engine.add_argument("--dtype", default="auto", help="of KV, which says how many bytes a token takes")
