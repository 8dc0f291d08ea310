"""Loading anbar.yaml: origins, overrides, and every complaint with its place."""

from pathlib import Path

import pytest

from anbar.config.load import Loaded, Override, load
from anbar.config.models import CacheMode, Dtype, PolicyName
from anbar.core.errors import ConfigError


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "anbar.yaml"
    path.write_text(text)
    return path


def complaints(tmp_path: Path, text: str) -> list[str]:
    """The lines of the error for a wrong file, without the file's directory."""
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text))
    lines = str(caught.value).replace(f"{tmp_path}/", "").splitlines()
    return [line.strip() for line in (lines[1:] if len(lines) > 1 else lines)]


def test_defaults_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two engines of the small model, a shared cache, the router on loopback; all are defaults."""
    monkeypatch.chdir(tmp_path)
    loaded = load(None)
    (engine,) = loaded.config.engines
    assert engine.launch is not None
    assert (engine.launch.model, engine.launch.count) == ("smollm2-135m-instruct", 2)
    assert loaded.config.cache.mode is CacheMode.SHARED
    assert (loaded.config.router.host, loaded.config.router.port) == ("127.0.0.1", 8000)
    assert loaded.config.state_dir == tmp_path / ".anbar"
    assert set(loaded.origins.values()) == {"default"}


FULL = """\
state_dir: state
engines:
  - name: small
    launch: {model: ./models/x, dtype: float32}
  - name: gpu-a
    url: http://10.0.0.5:8000
    events: tcp://10.0.0.5:5557
    api_key_file: key
    cost_file: gpu.cost.json
cache: {mode: native, host_bytes: 512MiB, store: {path: /var/store}}
router:
  policy: round_robin
"""


def test_origins_and_paths(tmp_path: Path) -> None:
    """Each value knows its line; paths are relative to the file's directory."""
    path = write(tmp_path, FULL)
    loaded = load(path)
    config = loaded.config
    assert config.engines[0].launch is not None
    assert config.engines[0].launch.dtype is Dtype.FLOAT32
    assert config.engines[0].launch.model == str(tmp_path / "models/x")
    assert config.engines[1].api_key_file == tmp_path / "key"
    assert config.engines[1].cost_file == tmp_path / "gpu.cost.json"
    assert config.cache.host_bytes == 512 * 1024**2
    assert loaded.origins["router.policy"] == f"{path}:12"
    assert loaded.origins["engines[1].events"] == f"{path}:7"
    assert loaded.origins["cache.mode"] == f"{path}:10"
    assert loaded.origins["router.port"] == "default"


def test_later_sources_win(tmp_path: Path) -> None:
    """Environment over file, command line over environment, and both say so."""
    path = write(tmp_path, "router: {port: 8001, host: 127.0.0.2}\n")
    environ = {"ANBAR_ROUTER_PORT": "8002", "ANBAR_ROUTER_HOST": "127.0.0.3", "UNRELATED": "1"}
    loaded = load(path, environ=environ, overrides=[Override("router.port", "8003", "command line --port")])
    assert loaded.config.router.port == 8003
    assert loaded.config.router.host == "127.0.0.3"
    assert loaded.origins["router.port"] == "command line --port"
    assert loaded.origins["router.host"] == "environment ANBAR_ROUTER_HOST"


def test_overrides_reach_into_default_engines() -> None:
    """--set works on the engines of a missing file, and adds what is not there."""
    loaded = with_set("engines[0].launch.count", "1")
    assert loaded.config.engines[0].launch is not None
    assert loaded.config.engines[0].launch.count == 1
    assert loaded.config.engines[0].launch.model == "smollm2-135m-instruct"
    assert with_set("router.policy", "least_loaded").config.router.policy is PolicyName.LEAST_LOADED


def with_set(key: str, text: str) -> Loaded:
    return load(None, overrides=[Override(key, text, f"command line --set {key}")])


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("router.prot", "unknown key; did you mean `port`?"),
        ("engines[7].name", "no such place"),
        ("router.port.x", "allowed: a whole number"),
        ("...", "is not a key"),
    ],
)
def test_wrong_overrides(key: str, words: str) -> None:
    """The complaint names the option, not a file."""
    with pytest.raises(ConfigError, match=r"command line|is not a key") as caught:
        with_set(key, "1")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "anbar.yaml:1: holds no settings; {} is a file with the defaults"),
        ("# all\n# commented out\n", "anbar.yaml:1: holds no settings"),
        ("router: {prot: 1}", "anbar.yaml:1: router.prot: unknown key; did you mean `port`?"),
        (
            "cache:\n  mode: redis",
            "anbar.yaml:2: cache.mode: is 'redis'; allowed: none, native, shared, lmcache",
        ),
        ("router:\n  port: '80'", "anbar.yaml:2: router.port: is '80'; allowed: a whole number"),
        ("router:\n  port: 70000", "anbar.yaml:2: router.port: is 70000; allowed: at most 65535"),
        ("router:\n  port: true", "anbar.yaml:2: router.port: is True; allowed: a whole number"),
        ("router:\n  port:", "anbar.yaml:2: router.port: is empty; allowed: a whole number"),
        ("cache: {host_bytes: 2 apples}", "anbar.yaml:1: cache.host_bytes: is '2 apples'; allowed: a whole"),
        (
            "router:\n  models:\n    chat:\n      - {modle: m}",
            "anbar.yaml:4: router.models.chat[0].modle: unknown key; did you mean `model`?",
        ),
        (
            "router:\n  models:\n    al: m\n    chain: al",
            "anbar.yaml:4: router.models.chain[0].model: is 'al', a name of router.models itself, and those "
            "are looked up once; allowed: served models (m)",
        ),
        ("router: {models: {chat: []}}", "anbar.yaml:1: router.models.chat: is []; allowed: at least 1"),
        ("router: []", "anbar.yaml:1: router: is []; allowed: keys and values"),
        ("engines: []", "anbar.yaml:1: engines: is []; allowed: at least 1 item"),
        ("engines:\n  - launch: {}", "anbar.yaml:2: engines[0].name: is required and not given"),
        ("- a\n- b", "anbar.yaml:1: holds a list, must hold keys and values"),
        ("a: [", "not valid YAML"),
        ("state_dir: a\nstate_dir: b", "anbar.yaml:2: state_dir: given twice, first in line 1"),
        ("engines: [{name: Big Name, url: 'http://x'}]", "engines[0].name: is 'Big Name'; allowed: text of"),
        (
            "engines: [{name: a, url: 'ftp://x'}]",
            "engines[0].url: is 'ftp://x'; allowed: http:// or https://",
        ),
        ("engines: [{name: a, url: 'http://h:8/v1/'}]", "allowed: the base address, without /v1: http://h:8"),
        ("engines: [{name: a, url: 'http://h', events: 'h:5557'}]", "'h:5557'; allowed: tcp://, a host"),
        ("state_dir: ''", "anbar.yaml:1: state_dir: is ''; allowed: not empty"),
        ("cache: {store: {path: ''}}", "anbar.yaml:1: cache.store.path: is ''; allowed: not empty"),
        ('cache: {store: {path: "a\\0b"}}', "anbar.yaml:1: cache.store.path: has a NUL character in it"),
        ('engines: [{name: a, launch: {args: ["--x=\\0"]}}]', "launch.args[0]: has a NUL character in it"),
        ("engines: [{name: a, url: 'http://h:99999'}]", "engines[0].url: is 'http://h:99999'; allowed: host"),
        ("engines: [{name: a, url: 'http://h:0'}]", "engines[0].url: is 'http://h:0'; allowed: host"),
        ("engines: [{name: a, url: 'http://h:x'}]", "engines[0].url: is 'http://h:x'; allowed: host"),
        ("engines: [{name: a, url: 'http://[::1'}]", "engines[0].url: is 'http://[::1'; allowed: host"),
        ("engines: [{name: a, url: 'http://:8'}]", "engines[0].url: is 'http://:8'; allowed: host"),
        ("engines: [{name: a, url: 'http://x', events: 'tcp://h:99999'}]", "'tcp://h:99999'; allowed: host"),
    ],
)
def test_complaints(tmp_path: Path, text: str, expected: str) -> None:
    """File, line, key, the value given and what is allowed."""
    found = complaints(tmp_path, text)
    assert any(expected in line for line in found), found


def test_all_problems_at_once(tmp_path: Path) -> None:
    """Wrong values and what does not fit together are reported in one go, in the order of the file."""
    text = """\
engines:
  - name: a
    launch: {count: 2, port: 8000, modle: x}
  - name: a-1
    url: http://x:1
    launch: {}
router: {polcy: x}
"""
    found = complaints(tmp_path, text)
    keys = [line.split(": ")[1] for line in found]
    assert set(keys) == {
        "engines[0].launch.modle",
        "engines[0].launch.port",
        "engines[1].url",
        "router.polcy",
    }
    lines = [int(line.split(":")[1]) for line in found]
    assert lines == sorted(lines)


def test_secrets_are_not_repeated(tmp_path: Path) -> None:
    """A wrong value below `env` may be a key."""
    (line,) = complaints(tmp_path, "engines: [{name: a, launch: {env: {HF_TOKEN: 12345}}}]")
    assert "12345" not in line
    assert "engines[0].launch.env.HF_TOKEN" in line


@pytest.mark.parametrize(
    "url", ["http://me:hush@h:1", "http://hush@h:1", "http://me:hush@h:99999", "ftp://hush@h"]
)
def test_no_passwords_in_addresses(tmp_path: Path, url: str) -> None:
    """They would appear in `config show` and in the router's answers; nor does the complaint show them."""
    (line,) = complaints(tmp_path, f"engines: [{{name: a, url: '{url}'}}]")
    assert "engines[0].url: is not shown here" in line
    assert "hush" not in line
    if url.startswith("http") and "99999" not in url:
        assert "use api_key_env or api_key_file for an engine, credentials_file for a bucket" in line


def test_anchors_and_merges_work(tmp_path: Path) -> None:
    """YAML's own means against repetition, with the key of the merged map overridden."""
    text = """\
engines:
  - &one {name: a, url: "http://x:1", tokenizer: /t}
  - {<<: *one, name: b, url: "http://x:2"}
"""
    engines = load(write(tmp_path, text)).config.engines
    assert [(engine.name, engine.tokenizer) for engine in engines] == [("a", "/t"), ("b", "/t")]


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_unreadable_files(tmp_path: Path, content: bytes | None) -> None:
    """Not text, or not there: the file is named."""
    path = tmp_path / "anbar.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"anbar\.yaml: (not a text file|cannot be read)"):
        load(path)
