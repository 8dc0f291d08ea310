"""What an emulated engine reads from its environment: vLLM's variables that mean something here."""

from collections.abc import Mapping
from dataclasses import dataclass

from anbar.adapters.vllm.block_hash import DEFAULT_SEED
from anbar.apps.emulator.fields import MAX_N, MAX_PROMPTS
from anbar.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable."""

    name: str
    default: str
    meaning: str

    def is_on(self, environ: Mapping[str, str]) -> bool:
        """Whether it is set to something like yes."""
        return environ.get(self.name, self.default).strip().lower() in ("1", "true")

    def text(self, environ: Mapping[str, str]) -> str:
        """Its value."""
        return environ.get(self.name, self.default)

    def number(self, environ: Mapping[str, str]) -> int:
        """Its value from 1 up. ConfigError for anything else."""
        text = environ.get(self.name, self.default)
        if not text.isdecimal() or not int(text):
            raise ConfigError(f"{self.name} is {text!r}, allowed: whole numbers from 1 up")
        return int(text)


API_KEY = Variable("VLLM_API_KEY", "", "key that `/v1/...` needs where there is no `--api-key`")
DEV_MODE = Variable(
    "VLLM_SERVER_DEV_MODE",
    "0",
    "1: `/sleep`, `/wake_up`, `/is_sleeping`, `/reset_prefix_cache`, `/reset_mm_cache`, "
    "`/reset_encoder_cache`",
)
RUNTIME_LORAS = Variable(
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "0", "1: `/v1/load_lora_adapter`, `/v1/unload_lora_adapter`"
)
INT_HASHES = Variable(
    "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "1", "0: KV events carry whole digests, not their low 64 bits"
)
NUM_SEQUENCES = Variable("VLLM_MAX_N_SEQUENCES", str(MAX_N), "the largest `n` of a request")
NUM_PROMPTS = Variable("VLLM_MAX_COMPLETION_PROMPTS", str(MAX_PROMPTS), "the most prompts of one completion")
HASH_SEED = Variable(
    "PYTHONHASHSEED", DEFAULT_SEED, "what block hashes begin from: equal for engines that share KV"
)
NIXL_HOST = Variable(
    "VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost", "what answers call this engine's host, with NixlConnector"
)
NIXL_PORT = Variable("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600", "and its port; nobody listens there")

VARIABLES = (
    *(API_KEY, DEV_MODE, RUNTIME_LORAS, INT_HASHES, NUM_SEQUENCES, NUM_PROMPTS, HASH_SEED),
    *(NIXL_HOST, NIXL_PORT),
)


def api_keys(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The key that is needed; none: no key is."""
    key = environ.get(API_KEY.name)
    return (key,) if key else ()
