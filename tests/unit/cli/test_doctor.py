"""Doctor: each trouble is found, named and has a fix."""

import dataclasses
import json
import os
import socket
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import zmq

from anbar.apps.doctor import Finding, Level
from anbar.apps.doctor.discovery import check_discovery
from anbar.apps.doctor.host import check_cpu, check_directory, check_memory, check_ports, check_shm
from anbar.apps.doctor.lmcache import check_lmcache
from anbar.apps.doctor.model import check_model
from anbar.apps.doctor.remote import check_engine
from anbar.apps.doctor.run import check_slots, check_store
from anbar.apps.interpreter import Interpreter
from anbar.apps.machine import Machine, container_memory, read_machine
from anbar.config.discover import DiscoverConfig
from anbar.config.lmcache import LmcacheConfig
from anbar.config.models import AnbarConfig, CacheConfig, Device, Dtype, EngineConfig, LaunchConfig
from anbar.config.render import EngineSlot
from tests.ports import free_port, free_ports
from tests.unit.cli.test_commands import anbar

GIB = 1024**3
MACHINE = Machine((0, 1), frozenset({"avx2"}), 8 * GIB, 4 * GIB, 8 * GIB, 5 * GIB, ())
SLOT = EngineSlot(
    "a-0", "/m", "m", Device.CPU, Dtype.FLOAT32, 8100, Path("/s"), "region", threads=((0,), (1,))
)


def levels(findings: Iterator[Finding]) -> list[Level]:
    return [finding.level for finding in findings]


def test_this_machine() -> None:
    """What is read of the real machine makes sense."""
    machine = read_machine({"CUDA_VISIBLE_DEVICES": "0, 1,-1"})
    assert machine.cores == tuple(sorted(os.sched_getaffinity(0)))
    assert 0 < machine.free_memory <= machine.total_memory
    assert 0 <= machine.shm_free <= machine.shm_total
    assert machine.gpus == ("0", "1")
    assert machine.flags


def test_cpu() -> None:
    """AVX2 is needed on x86; more workers than cores is slow; without CPU engines it does not matter."""
    slots = {"a": (SLOT,)}
    assert levels(check_cpu(MACHINE, slots)) == [Level.OK, Level.OK]
    assert Level.WARN in levels(check_cpu(dataclasses.replace(MACHINE, cores=(0,)), slots))
    bare = dataclasses.replace(MACHINE, flags=frozenset())
    assert levels(check_cpu(bare, slots)) == [Level.FAIL]
    assert levels(check_cpu(bare, {})) == []


def test_memory() -> None:
    """Against what is free."""
    assert check_memory(MACHINE, 4 * GIB).level is Level.OK
    finding = check_memory(MACHINE, 5 * GIB)
    assert finding.level is Level.FAIL
    assert "cache.host_bytes" in finding.fix


def test_shm() -> None:
    """The host tiers of all engines must fit; the fix names Kubernetes' way too."""
    config = AnbarConfig()
    assert check_shm(MACHINE, config, {"a": (SLOT, SLOT)}).level is Level.OK
    finding = check_shm(MACHINE, config, {"a": (SLOT, SLOT, SLOT)})
    assert finding.level is Level.FAIL
    assert "needs 6.4GiB, 5GiB of 8GiB are free" in finding.detail
    assert "medium: Memory" in finding.fix


def test_ports() -> None:
    """A taken port with its holder; an address that is not ours; free ones."""
    port = free_port()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        (finding,) = check_ports([("router", "127.0.0.1", port)])
    assert finding.level is Level.FAIL
    assert f"it is taken by process {os.getpid()}" in finding.detail
    assert "router.port" in finding.fix
    assert levels(check_ports([("router", "127.0.0.1", port)])) == [Level.OK]
    assert levels(check_ports([("router", "203.0.113.1", port)])) == [Level.FAIL]


def test_directories(tmp_path: Path) -> None:
    """To be made, a file in the way, and not writable (root may write anywhere, so /proc stands for it)."""
    assert check_directory("x", tmp_path / "a" / "b", key="k").level is Level.OK
    (tmp_path / "file").touch()
    assert "is not a directory" in check_directory("x", tmp_path / "file" / "b", key="k").detail
    finding = check_directory("x", Path("/proc/anbar"), key="k")
    assert finding.level is Level.FAIL
    assert finding.detail.startswith("/proc/anbar cannot be made: /proc cannot be written")


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_address_of_another_machine(host: str) -> None:
    """No port would help."""
    (finding,) = check_ports([("router", host, 8000)])
    assert finding.level is Level.FAIL
    assert "correct router.host" in finding.fix
    assert "port" not in finding.fix


def model(tmp_path: Path, **config: object) -> EngineSlot:
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, **config}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    return dataclasses.replace(SLOT, model=str(tmp_path))


def found(launch: dict[str, Any], cache: dict[str, Any], slot: EngineSlot) -> dict[str, Finding]:
    findings = check_model(LaunchConfig.model_validate(launch), CacheConfig.model_validate(cache), slot)
    return {finding.topic: finding for finding in findings}


def test_model_sizes(tmp_path: Path) -> None:
    """1,024 bytes a token: what fits on the device and in the host tier."""
    slot = model(tmp_path, max_position_embeddings=4096)
    good = found({"kv_cache_bytes": "8MiB"}, {"host_bytes": "16MiB"}, slot)
    assert {finding.level for finding in good.values()} == {Level.OK}
    assert "1,024 bytes of KV per token" in good["model"].detail
    assert "512 chunks of 32 tokens" in good["host tier"].detail
    small = found({"kv_cache_bytes": "1MiB"}, {}, slot)
    assert small["device KV"].level is Level.FAIL
    assert "holds 1,024 tokens, its longest context is 4,096" in small["device KV"].detail
    assert "device KV" not in found({"kv_cache_bytes": "1MiB", "max_model_len": 1024}, {}, slot)
    assert found({"num_device_blocks": 8}, {}, slot)["device KV"].level is Level.FAIL
    few = found({"kv_cache_bytes": "8MiB"}, {"host_bytes": "16MiB", "chunk_blocks": 64}, slot)
    assert few["host tier"].level is Level.WARN
    none = found({"kv_cache_bytes": "8MiB"}, {"host_bytes": "16MiB", "chunk_blocks": 512}, slot)
    assert none["host tier"].level is Level.FAIL


def test_models_that_cannot_be_judged(tmp_path: Path) -> None:
    """A hub name, a directory without config.json, a shape that is not understood."""
    assert found({}, {}, dataclasses.replace(SLOT, model="org/x"))["model"].level is Level.WARN
    assert found({}, {}, dataclasses.replace(SLOT, model="/nonexistent"))["model"].level is Level.FAIL
    assert found({}, {}, model(tmp_path, num_hidden_layers=None))["model"].level is Level.WARN


class Engine:
    """An engine's replies by path; anything else is 404."""

    def __init__(self, replies: Mapping[str, tuple[int, object]]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = replies.get(self.path, (404, None))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *args: object) -> None:
                return

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


GOOD: dict[str, tuple[int, object]] = {
    "/health": (200, None),
    "/version": (200, {"version": "0.32.0"}),
    "/v1/models": (200, {"data": [{"id": "m"}]}),
    "/kv_event_sources": (200, [{"endpoint": "tcp://*:5557"}]),
    "/v1/completions": (200, {"usage": {"prompt_tokens_details": {"cached_tokens": 0}}}),
}


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        ({}, Level.OK, "usage carries cached_tokens"),
        ({"/health": (503, None)}, Level.FAIL, "/health answers 503"),
        ({"/health": (404, None)}, Level.FAIL, "it has no /health, so it is no vLLM"),
        ({"/version": (200, {"version": "0.31.0"})}, Level.WARN, "vLLM 0.31.0"),
        ({"/v1/models": (401, None)}, Level.FAIL, "asks for an API key"),
        ({"/v1/models": (200, {"data": []})}, Level.FAIL, "names no model"),
        ({"/kv_event_sources": (404, None)}, Level.WARN, "publishes no KV events"),
        ({"/v1/completions": (200, {"usage": {"prompt_tokens_details": None}})}, Level.WARN, "no cached"),
    ],
)
def test_attached_engines(change: dict[str, tuple[int, object]], level: Level, words: str) -> None:
    """What a running engine tells of itself."""
    engine = Engine({**GOOD, **change})
    try:
        findings = list(check_engine(EngineConfig(name="a", url=engine.url), {}))
    finally:
        engine.close()
    worst = max(findings, key=lambda finding: list(Level).index(finding.level))
    assert worst.level is level
    assert any(words in finding.detail for finding in findings)
    assert all(finding.fix for finding in findings if finding.level is not Level.OK)


def test_unreachable_engine_and_missing_key(tmp_path: Path) -> None:
    """Nobody listens; a key's variable is not set; a key's file is not there."""
    (finding,) = check_engine(EngineConfig(name="a", url="http://127.0.0.1:1"), {})
    assert "cannot be reached" in finding.detail
    (finding,) = check_engine(EngineConfig(name="a", url="http://x", api_key_env="NO_SUCH_KEY"), {})
    assert "NO_SUCH_KEY, which is not set" in finding.detail
    (finding,) = check_engine(EngineConfig(name="a", url="http://x", api_key_file=tmp_path / "key"), {})
    assert "cannot be read" in finding.detail


@pytest.mark.parametrize(
    "greeting", [b"+PONG\r\n", b"\x00\xff" * 40_000, b""], ids=["redis", "bytes", "nothing"]
)
def test_what_is_no_http_server(greeting: bytes) -> None:
    """Something else listens there: it is said that it speaks no HTTP, not that a firewall is in between."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(greeting)

        thread = Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        (finding,) = check_engine(EngineConfig(name="a", url=url), {})
        thread.join()
    assert finding.level is Level.FAIL
    assert "does not speak HTTP" in finding.detail
    assert "engines[].url" in finding.fix


def test_keys_with_line_ends() -> None:
    """One line end too many does no harm; a key that cannot be a header is refused without being shown."""
    engine = Engine(GOOD)
    try:
        config = EngineConfig(name="a", url=engine.url, api_key_env="KEY")
        assert set(levels(check_engine(config, {"KEY": "sk-hush\n"}))) == {Level.OK}
        (finding,) = check_engine(config, {"KEY": "sk-hush\nsk-more"})
    finally:
        engine.close()
    assert finding.level is Level.FAIL
    assert "contains blanks, line breaks" in finding.detail
    assert "hush" not in finding.detail + finding.fix


@pytest.mark.parametrize("kind", ["zmq", "ipc", "silent", "other", "nobody"])
def test_configured_event_addresses_are_tried(tmp_path: Path, kind: str) -> None:
    """A publisher by TCP or socket file; something else that greets or hangs up; nobody. Each as `replay`."""
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher, socket.socket() as other:
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        publisher.bind(f"ipc://{tmp_path}/kv")
        other.bind(("127.0.0.1", 0))
        address = {
            "zmq": f"tcp://127.0.0.1:{port}",
            "ipc": f"ipc://{tmp_path}/kv",
            "nobody": "tcp://127.0.0.1:1",
        }.get(kind, f"tcp://127.0.0.1:{other.getsockname()[1]}")
        other.listen()
        greeter = Thread(target=greet, args=(other, b"SSH-2.0" if kind == "other" else b""))
        if kind in ("silent", "other"):
            greeter.start()
        engine = Engine(GOOD)
        try:
            config = EngineConfig(name="a", url=engine.url, events=f"tcp://127.0.0.1:{port}", replay=address)
            findings = list(check_engine(config, {}))
        finally:
            engine.close()
        if kind in ("silent", "other"):
            greeter.join()
    failed = [finding.detail for finding in findings if finding.level is Level.FAIL]
    assert len(failed) == (0 if kind in ("zmq", "ipc") else 1)
    assert all(f"no KV events can come from {address}" in detail for detail in failed)


def greet(listener: socket.socket, greeting: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(greeting)


def test_command(tmp_path: Path) -> None:
    """Exit status 1 when something fails; lines and JSON say the same."""
    (tmp_path / "anbar.yaml").write_text(
        "engines: [{name: a, url: 'http://127.0.0.1:1'}]\nrouter: {port: 1}\n"
    )
    plain = anbar("doctor", cwd=tmp_path)
    assert plain.returncode == 1
    assert "fail  engine a: http://127.0.0.1:1 cannot be reached" in plain.stdout
    assert "      fix: start it" in plain.stdout
    findings = json.loads(anbar("doctor", "--json", cwd=tmp_path).stdout)
    assert {"level", "topic", "detail", "fix"} == set(findings[0])
    assert any(finding["level"] == "fail" and finding["topic"] == "engine a" for finding in findings)


def test_emulated(tmp_path: Path) -> None:
    """No vLLM and no attached engine is looked at; ports and memory are."""
    router, first, _ = free_ports(3)
    launch = {"count": 2, "port": first}
    config = {
        "engines": [{"name": "a", "url": "http://127.0.0.1:1"}, {"name": "b", "launch": launch}],
        "router": {"port": router},
    }
    (tmp_path / "anbar.yaml").write_text(json.dumps(config))
    done = anbar("doctor", "--emulated", cwd=tmp_path, ANBAR_ENGINE_PYTHON="/nonexistent/python")
    assert done.returncode == 0, done.stdout
    assert "smollm2-135m-instruct is emulated" in done.stdout
    assert "(b-1)" in done.stdout
    assert "127.0.0.1:1 " not in done.stdout


def test_missing_interpreter(tmp_path: Path) -> None:
    """The variable, the path and the way out."""
    done = anbar("doctor", cwd=tmp_path, ANBAR_ENGINE_PYTHON="/nonexistent/python")
    assert done.returncode == 1
    assert "/nonexistent/python (environment ANBAR_ENGINE_PYTHON) does not exist" in done.stdout
    assert "fix: set ANBAR_ENGINE_PYTHON" in done.stdout


@pytest.mark.parametrize(
    ("directory", "names", "statistics", "expected"),
    [
        ("", ("memory.max", "memory.current"), "anon 300\nfile 600\ninactive_file 500\n", (1000, 400)),
        ("", ("memory.max", "memory.current"), None, (1000, 900)),
        (
            "memory",
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            "inactive_file 7\ntotal_inactive_file 500\n",
            (1000, 400),
        ),
    ],
)
def test_container_memory(
    tmp_path: Path, directory: str, names: tuple[str, str], statistics: str | None, expected: tuple[int, int]
) -> None:
    """Files that the kernel caches are not memory in use: reading the weights does not fill a container."""
    place = tmp_path / directory
    place.mkdir(exist_ok=True)
    (place / names[0]).write_text("1000\n")
    (place / names[1]).write_text("900\n")
    if statistics is not None:
        (place / "memory.stat").write_text(statistics)
    assert container_memory(tmp_path) == expected


def test_machine_without_limits(tmp_path: Path) -> None:
    """No container, and one without a limit."""
    assert container_memory(tmp_path) == (1 << 62, 0)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert container_memory(tmp_path) == (1 << 62, 0)


def test_engines_that_are_listed_elsewhere(tmp_path: Path) -> None:
    """The list is not there; is wrong; names nobody; names one engine, which is asked as an attached one."""
    path = tmp_path / "engines.yaml"
    discover = DiscoverConfig(file=path)
    entry = EngineConfig(name="pool", discover=discover)

    def found() -> list[Finding]:
        return list(check_discovery(entry, discover, {}))

    assert "there is no such file" in found()[0].detail
    path.write_text("- url: 7")
    (finding,) = found()
    assert (finding.level, finding.detail) == (
        Level.FAIL,
        f"{path}:1: [0].url: is 7; allowed: text (put it in quotes)",
    )
    path.write_text("[]")
    assert levels(iter(found())) == [Level.WARN]
    engine = Engine(GOOD)
    try:
        path.write_text(json.dumps([engine.url]))
        findings = found()
    finally:
        engine.close()
    assert set(levels(iter(findings))) == {Level.OK}
    place = engine.url.removeprefix("http://")
    assert {finding.topic for finding in findings} == {"discovery pool", f"engine pool@{place}"}


def test_directories_of_a_store_made_of_stores(tmp_path: Path) -> None:
    """One of two directories cannot be: a warning with its key, since engines start with the other; when none
    can be, both are failures."""
    (tmp_path / "file").write_text("in the way")
    bad, good = {"path": str(tmp_path / "file")}, {"path": str(tmp_path / "good")}
    worse = {"path": str(tmp_path / "file/below")}

    def findings(*members: dict[str, str]) -> list[Finding]:
        store = {"kind": "replicated", "members": list(members)}
        return list(check_store(AnbarConfig.model_validate({"cache": {"store": store}})))

    well, wrong = findings(good, bad)
    assert (well.level, wrong.level) == (Level.OK, Level.WARN)
    assert "cache.store.members[1].path" in wrong.fix
    assert [finding.level for finding in findings(bad, worse)] == [Level.FAIL] * 2


def test_lmcache(tmp_path: Path) -> None:
    """The package and the server, each with what helps when it is not there, or is of another version."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = LmcacheConfig(server=f"127.0.0.1:{listener.getsockname()[1]}")
        good = list(check_lmcache(there, engine_python(tmp_path, "0.5.6")))
        other = list(check_lmcache(there, engine_python(tmp_path, "0.4.0")))
    assert [found.level for found in good] == [Level.OK, Level.OK]
    assert [found.level for found in other] == [Level.FAIL, Level.OK]
    absent, silent = check_lmcache(
        LmcacheConfig(server=f"127.0.0.1:{free_port()}"), engine_python(tmp_path, None)
    )
    assert "pip install 'lmcache==" in absent.fix
    assert "lmcache server --host 127.0.0.1" in silent.fix


def test_packages_of_encryption(tmp_path: Path) -> None:
    """A tenant is encrypted, and the engine's Python has no `cryptography`: said before anything is started,
    with what helps. Without such a tenant nobody asks for it."""
    lacking = dataclasses.replace(engine_python(tmp_path, None), missing=("cryptography",))
    sealed = {"header": "x-tenant", "by_name": {"bank": None}, "scopes": {"bank": {"encrypt": True}}}
    for tenants, level in ((sealed, Level.FAIL), (None, Level.OK)):
        config = AnbarConfig.model_validate(
            {"engines": [{"name": "a", "launch": {}}], "cache": {"mode": "shared"}, "tenants": tenants}
        )
        first = next(check_slots(config, MACHINE, lacking, {"a": [SLOT]}))
        assert (first.topic, first.level) == ("vLLM", level)
        assert first.fix == (f"{tmp_path}/python -m pip install cryptography" if tenants else "")


def engine_python(tmp_path: Path, lmcache: str | None) -> Interpreter:
    return Interpreter(tmp_path / "python", "test", "3.11", "0.32.0", True, "0.1.0", (), None, lmcache)
