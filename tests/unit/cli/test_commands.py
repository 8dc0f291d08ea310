"""The commands as a user runs them: what they print and how they end."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from anbar.apps.calibrate.files import write_cost_file
from anbar.apps.emulator.default_cost import H100_8B, KV_BYTES_PER_TOKEN
from anbar.cli.commands import COMMANDS
from anbar.config.models import AnbarConfig
from anbar.core.cost_file import CostFile, EngineType, Measured


def anbar(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ANBAR_")}
    return subprocess.run(
        [sys.executable, "-m", "anbar.cli.main", *args],
        cwd=cwd,
        env={**clean, "COLUMNS": "200", **env},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_config_show_is_a_configuration(tmp_path: Path) -> None:
    """What is shown is YAML that loads to the same, with an origin on every value."""
    (tmp_path / "anbar.yaml").write_text("engines:\n  - name: a\n    launch: {args: [--max-num-seqs, '8']}\n")
    shown = anbar("config", "show", "--set", "router.port=8123", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "port: 8123" in shown.stdout
    assert "# command line --set router.port" in shown.stdout
    assert "# anbar.yaml:2" in shown.stdout
    again = tmp_path / "again.yaml"
    again.write_text(shown.stdout)
    assert anbar("config", "check", "-c", str(again), cwd=tmp_path).stdout == f"{again}: fine\n"
    second = anbar("config", "show", "-c", str(again), "--json", cwd=tmp_path)
    first = anbar("config", "show", "--set", "router.port=8123", "--json", cwd=tmp_path)
    assert json.loads(second.stdout)["config"] == json.loads(first.stdout)["config"]


def test_config_show_json(tmp_path: Path) -> None:
    """Values and origins beside each other, the environment named."""
    done = anbar("config", "show", "--json", cwd=tmp_path, ANBAR_ROUTER_PORT="8111")
    data = json.loads(done.stdout)
    assert AnbarConfig.model_validate(data["config"]).router.port == 8111
    assert data["origins"]["router.port"] == "environment ANBAR_ROUTER_PORT"
    assert data["origins"]["cache.mode"] == "default"


def test_config_show_emulated(tmp_path: Path) -> None:
    """What `anbar up --emulated` would run, and it is a configuration too."""
    (tmp_path / "anbar.yaml").write_text("engines: [{name: a, url: 'http://10.0.0.5:8000'}]")
    shown = anbar("config", "show", "--emulated", "--speed", "4", cwd=tmp_path).stdout
    assert "device: emulated" in shown
    assert "args: [--speed, '4']" in shown
    assert "# command line --emulated" in shown
    (tmp_path / "anbar.yaml").write_text(shown)
    assert anbar("config", "check", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--port", "abc"], "anbar: command line --port: "),
        (["--speed", "2"], "command line --speed: allowed with --emulated only"),
        (["--cost", "c.json"], "command line --cost: allowed with --emulated only"),
        (["--emulated", "--speed", "abc"], "anbar: command line --speed: is 'abc'; allowed: numbers\n"),
        (["--emulated", "--speed", "0"], "command line --speed: is 0; allowed: numbers above 0"),
        (["--emulated", "--cost", "c.json"], "c.json: cannot be read: No such file"),
        (["--emulated", "--cost", "anbar.yaml"], "anbar.yaml: not JSON"),
        (["--emulated", "--set", "engines[0].launch.args=[--count, '2']"], "use launch.count"),
    ],
)
def test_options_of_emulation(tmp_path: Path, options: list[str], words: str) -> None:
    """What does not go together is refused by name, with what is allowed."""
    (tmp_path / "anbar.yaml").write_text("router: {port: 8000}\n")
    done = anbar("up", *options, cwd=tmp_path)
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr


def test_config_show_hides_secrets(tmp_path: Path) -> None:
    """Variables that look like secrets are not printed."""
    text = "engines: [{name: a, launch: {env: {HF_TOKEN: hush, LEVEL: debug}}}]"
    (tmp_path / "anbar.yaml").write_text(text)
    shown = anbar("config", "show", cwd=tmp_path).stdout
    assert "hush" not in shown
    assert "debug" in shown


@pytest.mark.parametrize("host", ["0.0.0.0:8000", "http://0.0.0.0", "[::1]", "256.1.1.1", "a b", "", "-a"])
def test_hosts_that_are_none(tmp_path: Path, host: str) -> None:
    """What a router could only fail at when it listens is refused when the configuration is read."""
    (tmp_path / "anbar.yaml").write_text(f"router:\n  host: '{host}'\n")
    done = anbar("config", "check", cwd=tmp_path)
    assert done.returncode == 2
    words = "allowed: an address or a name, without port or brackets, such as 0.0.0.0, :: or localhost\n"
    assert done.stderr == f"anbar: anbar.yaml:2: router.host: is '{host}'; {words}"


@pytest.mark.parametrize("command", ["up", "doctor", "status", "down"])
def test_wrong_configuration(tmp_path: Path, command: str) -> None:
    """Every command refuses it alike: one readable line, status 2, no stack trace."""
    (tmp_path / "anbar.yaml").write_text("cache:\n  mode: redis\n")
    done = anbar(command, cwd=tmp_path)
    assert done.returncode == 2
    expected = "anbar: anbar.yaml:2: cache.mode: is 'redis'; allowed: none, native, shared, lmcache\n"
    assert done.stderr == expected


def test_debug_shows_the_trace(tmp_path: Path) -> None:
    """Only on request."""
    done = anbar("config", "check", "-c", "nowhere.yaml", cwd=tmp_path, ANBAR_DEBUG="1")
    assert "Traceback" in done.stderr
    assert "nowhere.yaml: cannot be read" in done.stderr


def test_config_check_tries_what_is_referred_to(tmp_path: Path) -> None:
    """Keys, a cost file and the exchange's secret that are not there: each is named with its line. With all
    in place nothing is wrong."""
    (tmp_path / "anbar.yaml").write_text(
        "engines:\n"
        "  - {name: a, url: 'http://10.0.0.5:8000', api_key_env: NO_SUCH_KEY}\n"
        "  - name: b\n"
        "    url: http://10.0.0.6:8000\n"
        "    api_key_file: ./key\n"
        "    cost_file: ./cost.json\n"
        "router: {peers: ['10.0.0.9:7000'], exchange: {secret_file: ./secret}}\n"
    )
    done = anbar("config", "check", cwd=tmp_path)
    assert done.returncode == 2
    head, *lines = done.stderr.splitlines()
    assert head == "anbar: anbar.yaml: 4 problems"
    starts = ("anbar.yaml:2: engines: 'a'", "anbar.yaml:5: engines: the API key file of 'b'")
    starts += ("anbar.yaml:6: engines: 'b': cost_file:", "anbar.yaml:7: router.exchange.secret_file:")
    assert [line.strip().startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * 4
    for name in ("key", "secret"):
        (tmp_path / name).write_text("s" * 32)
        (tmp_path / name).chmod(0o600)
    engine = EngineType("m", "d", "bfloat16", "0.32.0", 16, KV_BYTES_PER_TOKEN, 8192)
    write_cost_file(tmp_path / "cost.json", CostFile(engine, Measured("", "", 0.0), H100_8B))
    done = anbar("config", "check", cwd=tmp_path, NO_SUCH_KEY="k")
    assert (done.returncode, done.stdout) == (0, "anbar.yaml: fine\n"), done.stderr


def test_config_check_looks_for_what_stores_need(tmp_path: Path) -> None:
    """Password, certificates and credentials, of members too: each with its key and line, and nothing of it
    where no shared store is used."""
    text = (
        "cache:\n"
        "  store:\n"
        "    kind: layered\n"
        "    members:\n"
        "      - kind: valkey\n"
        "        valkey:\n"
        "          nodes: ['v:6379']\n"
        "          tls: true\n"
        "          ca_file: ./ca\n"
        "          password_env: NO_SUCH_PASSWORD\n"
        "      - kind: s3\n"
        "        s3: {bucket: kv-cache, credentials_file: ./credentials}\n"
    )
    (tmp_path / "anbar.yaml").write_text(text)
    done = anbar("config", "check", cwd=tmp_path)
    assert done.returncode == 2
    valkey, s3 = "cache.store.members[0].valkey", "cache.store.members[1].s3"
    gone = "cannot be read: No such file or directory"
    assert [line.strip() for line in done.stderr.splitlines()] == [
        "anbar: anbar.yaml: 3 problems",
        f"anbar.yaml:10: {valkey}.password_env: the environment variable NO_SUCH_PASSWORD is not set",
        f"anbar.yaml:9: {valkey}.ca_file: {tmp_path}/ca {gone}",
        f"anbar.yaml:12: {s3}.credentials_file: {tmp_path}/credentials {gone}",
    ]
    for name in ("ca", "credentials"):
        (tmp_path / name).touch()
    done = anbar("config", "check", cwd=tmp_path, NO_SUCH_PASSWORD="p")
    assert (done.returncode, done.stdout) == (0, "anbar.yaml: fine\n"), done.stderr
    (tmp_path / "anbar.yaml").write_text(text.replace("cache:\n", "cache:\n  mode: none\n"))
    assert anbar("config", "check", cwd=tmp_path).returncode == 0


def test_wrong_options(tmp_path: Path) -> None:
    """--set without a value, and an unknown option."""
    done = anbar("config", "check", "--set", "router.port", cwd=tmp_path)
    assert (done.returncode, "write it as KEY=VALUE" in done.stderr) == (2, True)
    assert anbar("up", "--bogus", cwd=tmp_path).returncode == 2


def test_nothing_runs(tmp_path: Path) -> None:
    """status and down on a fresh directory."""
    status = anbar("status", cwd=tmp_path)
    assert (status.returncode, status.stdout) == (1, f"nothing runs on {tmp_path / '.anbar'}\n")
    down = anbar("down", cwd=tmp_path)
    assert (down.returncode, down.stdout) == (0, f"nothing runs on {tmp_path / '.anbar'}\n")


def test_help_names_every_command(tmp_path: Path) -> None:
    """The whole of what anbar can do."""
    shown = anbar("--help", cwd=tmp_path).stdout
    for command in COMMANDS:
        assert f" {command} " in shown


def test_commands_are_imported_one_by_one(tmp_path: Path) -> None:
    """Asking for the version waits for no command, and a misspelt one is still recognized."""
    code = "import sys, anbar.cli.main; sys.exit(sum(name.startswith('anbar.apps.') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=180).returncode == 0
    assert "Did you mean 'status'?" in anbar("statsu", cwd=tmp_path).stderr


def test_a_router_that_is_being_imported_survives_a_hangup() -> None:
    """SIGHUP comes while the command's modules are looked for: it reads its configuration later anyway."""
    code = """
import os, signal, sys
from anbar.cli import main
class HangUp:
    def find_spec(self, name, path=None, target=None):
        if name == "anbar.apps.router.serve":
            print("hung up", flush=True)
            os.kill(os.getpid(), signal.SIGHUP)
sys.meta_path.insert(0, HangUp())
sys.argv = ["anbar", "router", "--help"]
main.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, timeout=180, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("hung up\n")
    assert "SIGHUP" in done.stdout


def test_version(tmp_path: Path) -> None:
    """As packages know it."""
    assert anbar("--version", cwd=tmp_path).stdout == f"anbar {version('anbar')}\n"


def test_router_reads_the_file_of_the_directory(tmp_path: Path) -> None:
    """Like `up`: without --config ./anbar.yaml is meant. What it refers to and is not there is named with its
    line, as everything else."""
    lacking = "engines:\n- {name: a, url: 'http://127.0.0.1:1', api_key_env: NO_SUCH_KEY}\n"
    for text, problem in (
        ("router: {prot: 1}\n", "anbar.yaml:1: router.prot: "),
        (lacking, "anbar.yaml:2: engines: 'a' takes its API key from "),
    ):
        (tmp_path / "anbar.yaml").write_text(text)
        done = anbar("router", cwd=tmp_path)
        assert (done.returncode, done.stderr.startswith(f"anbar: {problem}")) == (2, True), done.stderr


def test_explain_of_nothing(tmp_path: Path) -> None:
    """An empty id, as a script's unset variable gives it, is none."""
    done = anbar("explain", "", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "anbar: command line ID: is empty; leave it out for the last requests\n",
    )


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--url", "http://127.0.0.1:1"], 1, "anbar: no router answers at http://127.0.0.1:1"),
        (["--url", "here:80"], 2, "anbar: command line --url: 'here:80' is not of the form http(s)://host"),
        (["--set", "router.port=1"], 1, "anbar: no router answers at http://127.0.0.1:1"),
        (["--set", "router={host: '0.0.0.0', port: 1}"], 1, "anbar: no router answers at http://127.0.0.1:1"),
    ],
)
def test_explain_without_a_router(tmp_path: Path, options: list[str], status: int, words: str) -> None:
    """Where it looked, and what to do; it looks where the configuration says."""
    done = anbar("explain", "some-id", *options, cwd=tmp_path)
    assert (done.returncode, words in done.stderr) == (status, True), done.stderr
