"""Real vLLM, as `anbar up` starts it, keeps the contract that the emulator keeps: what differs is a defect.

`tests/engine/test_api_contract.py` holds it to the rest, which takes minutes.
"""

import pytest

from anbar.testing.engine_contract import ESSENTIAL, PROTOCOL, Check, Target
from tests.contract import hold
from tests.e2e.stack import MODEL, Stack


@pytest.fixture(scope="module")
def target(stack: Stack) -> Target:
    """One engine of the stack, asked directly. The tests run one by one: nobody else asks it meanwhile."""
    engine = stack.attached()[0]
    return Target(engine["url"], MODEL, engine["events"], engine["replay"], offloads=True, alone=True)


@pytest.mark.parametrize(
    "check", [*ESSENTIAL, *PROTOCOL], ids=lambda check: check.__name__.removeprefix("check_")
)
def test_engine_contract(target: Target, check: Check) -> None:
    """What Anbar relies on, and the API's words and shapes to the letter."""
    hold(check, target)
