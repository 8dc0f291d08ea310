"""`anbar up` on real vLLM while its parts are killed: an engine, the router, at last `anbar up` itself.

One stack for the file; the tests build on each other, in the order in which they stand.
"""

import json
import os
import re
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from anbar.adapters.process import proc
from tests.e2e.stack import MODEL, Answer, Stack, prose, run_stack, wait_until
from tests.ports import free_ports

pytestmark = pytest.mark.stack

BLOCK = 32
NUM_WORDS = 600
"""One token each: seconds to compute on one core."""
BACK_WITHIN_S = 240.0
"""An engine starts in half a minute here; a busy machine takes several times as long."""
GONE_WITHIN_S = 120.0
LIMIT_S = 120.0
SHM, TMP = Path("/dev/shm"), Path("/tmp")


@dataclass(frozen=True)
class Site:
    """Where the stack lives. `temp` is its TMPDIR and nobody else's."""

    directory: Path
    temp: Path
    config: dict[str, Any]

    @contextmanager
    def up(self) -> Iterator[Stack]:
        """`anbar up`, until the end of the context or its own."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", str(self.temp))
            with run_stack(self.config, self.directory) as stack:
                yield stack


@dataclass(frozen=True)
class Footprint:
    """All that a running stack has on this machine. `in_tmp` are names in /tmp below which it has something
    open."""

    processes: tuple[proc.ProcessId, ...]
    ports: tuple[int, ...]
    shm: frozenset[str]
    in_tmp: frozenset[str]
    scratch_dir: Path

    def left(self) -> list[str]:
        """What of it is still there, the scratch directory aside."""
        found = [f"process {process.pid}" for process in self.processes if proc.is_alive(process)]
        for port in self.ports:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    found.append(f"port {port}")
        return found + [f"/dev/shm/{name}" for name in self.shm if (SHM / name).exists()]


def footprint(stack: Stack) -> Footprint:
    """Look at a running stack; two engines with their workers have all of these."""
    state = stack.state()
    processes = [entry.id for entry in proc.descendants(stack.process.pid, proc.all_entries())]
    shm = {name for part in state["parts"] for name in part["shm"]}
    for process in processes:
        with suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
            shm.update(re.findall(rf"{SHM}/(\S+)$", maps, re.MULTILINE))
    ports = tuple(part["port"] for part in state["parts"])
    assert len(processes) >= 8, "three guards, three servers, two engine cores"
    assert len(ports) == 3
    assert any((SHM / name).exists() for name in shm)
    scratch_dir = Path(state["scratch_dir"])
    return Footprint(tuple(processes), ports, frozenset(shm), _open_in_tmp(processes), scratch_dir)


def _open_in_tmp(processes: Iterable[proc.ProcessId]) -> frozenset[str]:
    found = set()
    for process in processes:
        with suppress(OSError):
            for entry in Path(f"/proc/{process.pid}/fd").iterdir():
                with suppress(OSError):
                    found.add(entry.readlink())
    return frozenset(path.parts[2] for path in found if path.is_relative_to(TMP) and path != TMP)


@dataclass(frozen=True)
class Warmed:
    """Prompts with their answers: two that only `victim` computed, one that only `survivor` did."""

    victim: str
    survivor: str
    kept: list[tuple[str, Answer]]
    others: tuple[str, Answer]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("stack")
    router_port, first_engine_port, _ = free_ports(3)
    launch = {
        "count": 2,
        "port": first_engine_port,
        "dtype": "float32",  # equal greedy tokens, whatever the batch
        "block_size": BLOCK,
        "max_model_len": 4096,
        "restart": "on-failure",
        "env": {"VLLM_SERVER_DEV_MODE": "1"},  # lets tests empty an engine's caches
    }
    config = {
        "state_dir": str(directory / "state"),
        "engines": [{"name": "small", "launch": launch}],
        "cache": {"mode": "shared", "host_bytes": "1GiB"},
        "router": {"port": router_port, "connect_timeout_s": 60.0},
    }
    temp = Path(tempfile.mkdtemp(prefix="anbar-t-", dir=TMP))
    yield Site(directory, temp, config)
    shutil.rmtree(temp, ignore_errors=True)


@pytest.fixture(scope="module")
def stack(site: Site) -> Iterator[Stack]:
    """The first stack, which ends by SIGKILL."""
    with site.up() as running:
        yield running


@pytest.fixture(scope="module")
def second(site: Site, stack: Stack) -> Iterator[Stack]:
    """The stack after it, on the same state directory."""
    assert stack.process.poll() == -signal.SIGKILL
    with site.up() as running:
        yield running


@pytest.fixture(scope="module")
def warmed(stack: Stack) -> Warmed:
    """Unrelated prompts, until one engine has two and the other one at least one; all of it is stored."""
    seen: dict[str, list[tuple[str, Answer]]] = {}
    for seed in range(500, 512, 2):
        prompts = [prose(seed + i, NUM_WORDS) for i in range(2)]
        with ThreadPoolExecutor(2) as pool:  # one after the other, chance would decide where they go
            answers = list(pool.map(stack.complete, prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.cached == 0
            seen.setdefault(answer.engine, []).append((prompt, answer))
        if len(seen) == 2 and len(max(seen.values(), key=len)) >= 2:
            break
    stack.settle()
    victim, survivor = sorted(seen, key=lambda engine: -len(seen[engine]))
    return Warmed(victim, survivor, seen[victim][:2], seen[survivor][0])


def hit(answer: Answer) -> bool:
    """Predicted to the token, and nearly all of it."""
    print(f"{answer.engine}: predicted {answer.predicted}, cached {answer.cached} of {answer.prompt_tokens}")
    return answer.predicted == answer.cached and answer.cached > 0.9 * answer.prompt_tokens


def load(stack: Stack, prompt: str) -> Answer:
    """An answer for which the store answered in time: see `heard`."""
    return heard(stack, lambda: stack.complete(prompt))


def load_beside(stack: Stack, long_prompt: str, prompt: str) -> tuple[str, Answer]:
    """The engine that decodes one long answer, which `long_prompt` chooses, and what the stack says to
    `prompt` meanwhile. Each try has a long answer of its own: none ends before the store has answered."""
    busy = ""

    def ask() -> Answer:
        nonlocal busy
        with decoding(stack, long_prompt) as busy:
            return stack.complete(prompt)

    answer = heard(stack, ask)
    return busy, answer


def heard(stack: Stack, ask: Callable[[], Answer]) -> Answer:
    """An answer for which the store answered in time. An engine that waits for it for half a second computes
    instead, and lets it alone for a while: then its caches are dropped and the prompt is asked again."""
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        before = num_unheard(stack)
        answer = ask()
        if num_unheard(stack) == before or time.monotonic() > deadline_s:
            return answer
        time.sleep(2.0)
        stack.settle()
        url = stack.engines()[answer.engine].url
        httpx.post(f"{url}/reset_prefix_cache?reset_external=true", timeout=LIMIT_S).raise_for_status()
        stack.settle()


def num_unheard(stack: Stack) -> float:
    """Keys that the store was not asked for, or about which it said nothing in time."""
    return sum(
        engine.metric(f"anbar_tier_{series}_total", result=result)
        for engine in stack.engines().values()
        for series in ("lookups", "loads")
        for result in ("timeout", "error", "refused", "queue_full")
    )


@contextmanager
def decoding(stack: Stack, prompt: str) -> Iterator[str]:
    """An engine, which the prompt chooses, that decodes one long answer meanwhile."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 3200, "ignore_eos": True, "stream": True}
    with stack.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()  # kept: when it goes, the connection does
        assert next(lines).startswith("data: ")
        yield response.headers["x-anbar-engine"]
        assert stack.metric("anbar_router_in_flight_requests") == 1, "the long answer was not long enough"
    wait_until(
        lambda: stack.metric("anbar_router_in_flight_requests") == 0, LIMIT_S, "the long answer has ended"
    )


def test_a_killed_engine_comes_back(stack: Stack, warmed: Warmed) -> None:
    """SIGKILL ends one engine. The other one gets everything, without a failed try, until `anbar up` has
    started it again; then it gets its share."""
    both = {warmed.victim, warmed.survivor}
    before = stack.engines()[warmed.victim]
    before.kill()
    wait_until(lambda: stack.ready_engines() == {warmed.survivor}, LIMIT_S, "the router has seen it")
    failures = stack.metric("anbar_router_attempt_failures_total")
    for seed in range(520, 524):
        assert stack.complete(prose(seed, 10), max_tokens=1).engine == warmed.survivor
    assert stack.metric("anbar_router_attempt_failures_total") == failures
    wait_until(lambda: stack.ready_engines() == both, BACK_WITHIN_S, "it serves again")
    assert stack.engines()[warmed.victim].pid != before.pid
    assert f"{warmed.victim} ended with status" in stack.output.read_text()
    with ThreadPoolExecutor(2) as pool:
        used = pool.map(lambda seed: stack.complete(prose(seed, 10), max_tokens=1).engine, range(530, 550))
        assert set(used) == both


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_greedy_stream_survives_its_engine(stack: Stack, warmed: Warmed, path: str) -> None:
    """SIGKILL ends an engine in the middle of a stream. The other engine goes on with it: the client sees one
    stream, whose text and usage are those of the answer that was not interrupted."""
    both = {warmed.victim, warmed.survivor}
    chat = path.endswith("chat/completions")
    text = "Tell a very long story about a storehouse, its keeper and a river."
    asked = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    body = {"model": MODEL, "max_tokens": 300, "temperature": 0, **asked}
    whole = stack.http.post(path, json=body).json()
    (choice,) = whole["choices"]
    assert whole["usage"]["completion_tokens"] > 100, "long enough to be interrupted"
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with stack.http.stream("POST", path, json={**body, **options}) as response:
        lines = (line.removeprefix("data: ") for line in response.iter_lines() if line)
        first = [next(lines) for _ in range(10)]
        stack.engines()[response.headers["x-anbar-engine"]].kill()
        rest = list(lines)
    assert rest.pop() == "[DONE]"
    chunks = [json.loads(line) for line in (*first, *rest)]
    assert not [chunk for chunk in chunks if "error" in chunk]
    assert len({chunk["id"] for chunk in chunks}) == 1
    pieces = [piece for chunk in chunks for piece in chunk["choices"]]
    said = (piece["delta"].get("content") if chat else piece["text"] for piece in pieces)
    assert "".join(piece or "" for piece in said) == (
        choice["message"]["content"] if chat else choice["text"]
    )
    assert [p["finish_reason"] for p in pieces if p["finish_reason"]] == [choice["finish_reason"]]
    for count in ("prompt_tokens", "completion_tokens"):
        assert chunks[-1]["usage"][count] == whole["usage"][count]
    wait_until(lambda: stack.ready_engines() == both, BACK_WITHIN_S, "the killed engine serves again")


def test_what_lies_in_the_store_is_predicted(stack: Stack, warmed: Warmed) -> None:
    """What only the dead engine had computed is in the store alone. While one engine decodes, it is loaded by
    whichever is predicted to be the quicker: predicted to the token, and the same answer as before."""
    for long_prompt, (prompt, old) in zip((warmed.others[0], warmed.kept[0][0]), warmed.kept, strict=True):
        _, loaded = load_beside(stack, long_prompt, prompt)
        assert hit(loaded)
        assert loaded.text == old.text
        stack.settle()


def test_a_prompt_of_whole_blocks_counts_whole(stack: Stack) -> None:
    """A prompt of exactly ten blocks, on the device and in host RAM: vLLM reports all of it as cached, the
    block of the last token too, and so does the prediction."""
    ids = stack.tokenize(prose(560, 400))[: 10 * BLOCK]
    assert stack.complete(ids, max_tokens=2).cached == 0
    stack.settle()
    again = stack.complete(ids, max_tokens=1)
    assert again.predicted == again.cached == len(ids)


def test_a_killed_router_comes_back_with_its_index(stack: Stack, warmed: Warmed) -> None:
    """SIGKILL ends the router. It is started again, and knows from the engines' replay what they hold: the
    first requests go where their prefix is on the device, predicted to the block: the last one may be in the
    store alone, of which a new router knows nothing."""

    def router() -> int:
        return next(part["pid"] or 0 for part in stack.state()["parts"] if part["kind"] == "router")

    def serves() -> bool:
        with suppress(httpx.TransportError):
            return stack.ready_engines() == {warmed.victim, warmed.survivor}
        return False

    before = router()
    assert before, "process 0 would be this test's own group"
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: router() not in (0, before), LIMIT_S, "there is a new router")
    wait_until(serves, LIMIT_S, "it has both engines")
    stack.settle()
    for prompt, old in warmed.kept:
        answer = stack.complete(prompt)
        assert answer.cached - BLOCK <= answer.predicted <= answer.cached
        assert answer.predicted > 0.9 * answer.prompt_tokens
        assert answer.text == old.text


def test_nothing_outlives_a_killed_launcher(stack: Stack) -> None:
    """kill -9 of `anbar up`: no process of the stack, none of its ports, none of its shared memory is left
    soon after, though nobody is there to clean up."""
    whole = footprint(stack)
    stack.process.kill()
    stack.process.wait(LIMIT_S)
    wait_until(lambda: not whole.left(), GONE_WITHIN_S, "all of it is gone")


def test_the_next_stack_cleans_up_and_has_the_store(site: Site, second: Stack, warmed: Warmed) -> None:
    """A new `anbar up` on the same state directory says that it cleans up, removes the killed one's scratch
    directory, and serves from the store what the killed one's engines had computed."""
    assert "was killed; cleaning up after it" in second.output.read_text()
    assert [path.name for path in site.temp.iterdir()] == [Path(second.state()["scratch_dir"]).name]
    for prompt, old in warmed.kept:
        answer = load(second, prompt)
        assert answer.cached > 0.9 * answer.prompt_tokens
        assert answer.text == old.text


def test_ctrl_c_leaves_nothing(site: Site, second: Stack) -> None:
    """Ctrl-C: status 0, and no process, port, shared memory, socket or temporary file is left."""
    whole = footprint(second)
    second.process.send_signal(signal.SIGINT)
    assert second.process.wait(LIMIT_S) == 0
    assert whole.left() == []
    assert not whole.scratch_dir.exists()
    assert list(site.temp.iterdir()) == []
    ours = (name for name in whole.in_tmp if re.search("vllm|torch|psm_", name))
    assert [name for name in ours if (TMP / name).exists()] == []
    assert sorted(path.name for path in second.state_dir.iterdir()) == ["lock", "logs", "store"]
    assert "nothing is left running" in second.output.read_text().splitlines()[-1]
