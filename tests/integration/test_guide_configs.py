"""The configurations of the guides to stores, started as a whole on emulated engines.

Those engines touch no store; that each of the stores opens and serves is tested beside its kind
(`valkey`, `s3`, tests/unit/store/test_open.py).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.guide import REPO
from tests.e2e.stack import prose, run_stack
from tests.ports import free_ports

LIMIT_S = 300
NAMES = ("choose-a-store", "size-the-tiers", "ha", "store-s3", "store-valkey")


def configurations() -> Iterator[Any]:
    """Whole files: a guide's blocks that have engines."""
    for name in NAMES:
        text = (REPO / f"docs/guides/{name}.md").read_text()
        blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        whole = [block for block in blocks if block.startswith("engines:")]
        assert whole, f"{name} has no configuration"
        yield from (pytest.param(block, id=f"{name}-{number}") for number, block in enumerate(whole))


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("text", [*configurations()])
def test_the_stack_starts(text: str, tmp_path: Path) -> None:
    """As it stands in the guide, but for ports and the place of what it writes: both engines are ready, and
    what one has computed is found cached."""
    made = yaml.safe_load(re.sub(r"(?<![\w/])/(mnt|dev/shm)/", f"{tmp_path}/", text))
    router, first, _ = free_ports(3)
    (pool,) = made["engines"]
    pool["launch"]["port"] = first
    made |= {"state_dir": str(tmp_path / "state"), "router": {"port": router, "connect_timeout_s": 60.0}}
    with run_stack(made, tmp_path, ("--emulated",), LIMIT_S) as stack:
        model = Path(pool["launch"].get("model", "smollm2-135m-instruct")).name
        prompt = prose(1, 200)
        first_answer = stack.complete(prompt, model=model)
        stack.settle()
        second = stack.complete(prompt, model=model)
        assert len(stack.ready_engines()) == 2
    assert first_answer.cached == 0
    assert second.engine == first_answer.engine
    assert second.cached == second.predicted > 0
    assert stack.process.returncode == 0
