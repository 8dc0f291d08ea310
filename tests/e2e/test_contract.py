"""Real vLLM keeps the contract that the emulator of the other suites keeps: what differs is a defect."""

import pytest

from anbar.testing.engine_contract import ALL, Target
from tests.e2e.stack import MODEL, Stack


@pytest.fixture(scope="module")
def target(stack: Stack) -> Target:
    """One engine of the stack, asked directly."""
    engine = stack.attached()[0]
    return Target(engine["url"], MODEL, engine["events"], engine["replay"], offloads=True)


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.__name__.removeprefix("check_"))
def test_engine_contract(target: Target, check: object) -> None:
    """Shapes, errors, streams, usage, cached tokens, events and metrics that Anbar relies on."""
    assert callable(check)
    check(target)
