"""An engine dies: nothing that can still be served is lost. Runs last, since it ends an engine."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.stack import Answer, Stack, prose, wait_until

NUM_WORDS = 1000
"""One token each: what two cores compute in a few seconds, and load in a fraction of one."""


@dataclass
class Aftermath:
    """What was seen before, during and after the death of `victim`; `kept` are prompts that it alone had
    computed, with its answers."""

    victim: str
    survivor: str
    kept: list[tuple[str, Answer]]
    interrupted: list[Answer] = field(default_factory=list)


def warm_both(stack: Stack) -> dict[str, list[tuple[str, Answer]]]:
    """Two prompts or more for each engine that it alone computed, with its answers."""
    warmed: dict[str, list[tuple[str, Answer]]] = {}
    for seed in range(300, 310, 2):
        prompts = [prose(seed + i, NUM_WORDS) for i in range(2)]
        with ThreadPoolExecutor(2) as pool:  # one after the other, chance would decide where they go
            answers = list(pool.map(lambda prompt: stack.complete(prompt, max_tokens=8), prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.cached == 0
            warmed.setdefault(answer.engine, []).append((prompt, answer))
        if len(warmed) == 2 and all(len(kept) > 1 for kept in warmed.values()):
            return warmed
    raise AssertionError("ten unrelated prompts went to one engine")


@pytest.fixture(scope="module")
def aftermath(stack: Stack) -> Aftermath:
    """Warm both engines, let them store, and kill one in the middle of a long prefill."""
    warmed = warm_both(stack)
    stack.settle()
    interrupted: list[Answer] = []
    long_prompt = prose(310, 3500)
    thread = threading.Thread(target=lambda: interrupted.append(stack.complete(long_prompt)))
    thread.start()

    def busy() -> list[str]:
        return [e for e in warmed if stack.metric("anbar_router_queued_prefill_tokens", engine=e) > 0]

    seen: list[str] = []
    wait_until(lambda: bool(seen.extend(busy()) or seen), 60, "the long prompt is on its way")
    victim = seen[0]
    (survivor,) = set(warmed) - {victim}
    time.sleep(0.5)  # into the prefill, which takes many seconds
    stack.engines()[victim].kill()
    thread.join(300)
    return Aftermath(victim, survivor, warmed[victim], interrupted)


def test_killed_before_the_first_byte_the_other_engine_answers(stack: Stack, aftermath: Aftermath) -> None:
    """The client of the killed engine sees one good answer, from the other engine."""
    (answer,) = aftermath.interrupted
    assert answer.engine == aftermath.survivor
    assert answer.usage["completion_tokens"] >= 1
    assert answer.chunks[-1].get("usage"), "the stream ended with its usage"


def test_the_dead_engine_gets_no_traffic(stack: Stack, aftermath: Aftermath) -> None:
    """Right after the death every request goes to the survivor at once, without a failed try."""
    wait_until(lambda: stack.ready_engines() == {aftermath.survivor}, 60, "the router has seen it")
    retries = stack.metric("anbar_router_attempt_failures_total")
    for seed in range(320, 324):
        assert stack.complete(prose(seed, 10), max_tokens=1).engine == aftermath.survivor
    assert stack.metric("anbar_router_attempt_failures_total") == retries


def test_kv_of_the_dead_engine_comes_back_from_the_store(stack: Stack, aftermath: Aftermath) -> None:
    """What the dead engine computed is served by the survivor from the store: the same greedy tokens, more
    than 0.9 of the prompt cached, and by vLLM's own count no more than the rest computed."""
    engine = stack.engines()[aftermath.survivor]

    def counted(**source: str) -> float:
        return engine.metric("vllm:prompt_tokens_by_source_total", **source)

    for prompt, kept in aftermath.kept:
        total, computed = counted(), counted(source="local_compute")
        loaded = stack.complete(prompt, max_tokens=8)
        assert loaded.engine == aftermath.survivor
        assert loaded.text == kept.text
        if loaded.cached:  # an engine that waits for the store for half a second computes it instead
            break
        time.sleep(5.0)  # it is given a rest before it is asked again
    assert loaded.cached > 0.9 * loaded.prompt_tokens
    wait_until(lambda: counted() >= total + loaded.prompt_tokens, 60, "vLLM has counted the prompt")
    assert counted(source="local_compute") - computed < 0.1 * loaded.prompt_tokens


def test_ready_and_health_while_one_engine_is_dead(stack: Stack, aftermath: Aftermath) -> None:
    """One dead engine of two does not make the stack unready."""
    assert aftermath.victim not in stack.ready_engines()
    assert stack.http.get("/ready").status_code == 200
    assert stack.http.get("/health").status_code == 200


def test_without_any_engine_the_stack_ends_and_leaves_nothing(stack: Stack, aftermath: Aftermath) -> None:
    """The last engine dies and none may be restarted: `anbar up` ends with status 1 and says why; no process,
    port or shared memory of the stack is left."""
    state = stack.state()
    shm = [name for part in state["parts"] for name in part["shm"]]
    assert shm, "the engines had shared memory"
    stack.engines()[aftermath.survivor].kill()
    assert stack.process.wait(120) == 1
    assert "no engine is left" in stack.output.read_text().splitlines()[-1]
    for part in state["parts"]:
        assert not Path(f"/proc/{part['pid']}").exists(), part["name"]
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", part["port"])) != 0, part["name"]
    assert [name for name in shm if Path("/dev/shm", name).exists()] == []
    assert not Path(state["scratch_dir"]).exists()
    assert not (stack.state_dir / "state.json").exists()
