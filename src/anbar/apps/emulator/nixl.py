"""vLLM's NIXL handshake, as far as requests and answers show it: nothing is moved, and nobody is asked.

Models vLLM 0.32 `distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py`. An engine with the
connector answers `do_remote_decode` with the place of its blocks; one that gets such a place with
`do_remote_prefill` has the whole prompt at once, of which it computes the last token. Not modelled: that the
blocks are kept for a while, and what fetching them takes.

What the second engine reports as cached is what the first one found in its caches: of what was fetched vLLM
says nothing in `usage` (`v1/engine/output_processor.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anbar.apps.emulator.environment import NIXL_HOST, NIXL_PORT
from anbar.apps.emulator.errors import Json

CONNECTORS = ("NixlConnector", "NixlPullConnector")
_CACHED = "remote_prefill_cached_tokens"
_PLACE = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")


@dataclass(frozen=True, slots=True)
class Nixl:
    """Where others would find this engine's blocks."""

    engine_id: str = "emulated"
    host: str = "localhost"
    port: int = 5600

    def place(self, request_id: str, num_tokens: int, num_cached: int, block_size: int) -> Json:
        """What the answer to a prompt of `num_tokens`, of which `num_cached` were not computed, says: for the
        engine that is to fetch it."""
        num_blocks = -(-num_tokens // block_size)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(1, num_blocks + 1))],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": self.host,
            "remote_port": self.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": num_tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            _CACHED: num_cached,
        }


def configured(transfer: Mapping[str, Any] | None, environ: Mapping[str, str]) -> Nixl | None:
    """Of `--kv-transfer-config`; None without the connector. ConfigError for a port that is none."""
    if not transfer or transfer.get("kv_connector") not in CONNECTORS:
        return None
    engine_id = str(transfer.get("engine_id") or "emulated")
    return Nixl(engine_id, NIXL_HOST.text(environ), NIXL_PORT.number(environ))


def gives(params: Mapping[str, object]) -> bool:
    """Whether a request wants its blocks to be fetched by another engine."""
    return bool(params.get("do_remote_decode"))


def takes(params: Mapping[str, object]) -> bool:
    """Whether a request's prompt is fetched from another engine."""
    if not params.get("do_remote_prefill") or not params.get("remote_block_ids"):
        return False
    return all(name in params for name in _PLACE)


def reported(params: Mapping[str, object]) -> int | None:
    """What a request's usage shows as cached, whatever its engine had; None: what that had."""
    value = params.get(_CACHED)
    return value if params.get("do_remote_prefill") and type(value) is int else None
