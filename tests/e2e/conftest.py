"""One real stack for the whole end-to-end suite: two vLLM engines, the shared cache, the router."""

from collections.abc import Iterator

import pytest

from tests.e2e.stack import Stack, run_stack
from tests.ports import free_ports


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two engines and a shared store; a dead engine stays dead, so that a test can look."""
    directory = tmp_path_factory.mktemp("stack")
    router_port, first_engine_port, _ = free_ports(3)
    config = {
        "state_dir": str(directory / "state"),
        "engines": [
            {
                "name": "small",
                "launch": {
                    "count": 2,
                    "port": first_engine_port,
                    "dtype": "float32",  # equal greedy tokens, whatever the batch
                    "block_size": 32,
                    "max_model_len": 4096,
                    "restart": "never",
                },
            }
        ],
        "cache": {"mode": "shared", "host_bytes": "1GiB"},
        "router": {"port": router_port, "client_kv_fields": "allow", "connect_timeout_s": 60.0},
    }
    with run_stack(config, directory) as running:
        yield running
