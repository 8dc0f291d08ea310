"""Engines that are listed elsewhere: how that is configured, the file that lists them, what they become."""

import json
from pathlib import Path

import pytest

from anbar.config.discover import DiscoverConfig, Scheme, name_server
from anbar.config.emulate import Emulation, emulate
from anbar.config.found import FoundEngine, engine_of, parse_engines, place_of
from anbar.config.load import load
from anbar.config.models import AnbarConfig, EngineConfig
from anbar.core.errors import ConfigError
from tests.unit.config.test_load import complaints, write


def entry(**fields: object) -> EngineConfig:
    return EngineConfig.model_validate({"name": "pool", "discover": {"file": "/e.yaml"}, **fields})


def found(text: str, scheme: Scheme = Scheme.HTTP) -> list[FoundEngine]:
    return list(parse_engines(text, Path("/etc/anbar/e.yaml"), scheme))


def refused(text: str) -> list[str]:
    """The lines that a list is refused with, without the file's directory and the line above them."""
    with pytest.raises(ConfigError) as caught:
        found(text)
    lines = str(caught.value).replace("/etc/anbar/", "").splitlines()
    return [line.strip() for line in (lines[1:] if len(lines) > 1 else lines)]


@pytest.mark.parametrize(
    ("discover", "complaint"),
    [
        ("{}", "engines[0].discover: needs either `file` or `dns`"),
        ("{file: e.yaml, dns: a.b}", "engines[0].discover: needs either `file` or `dns`"),
        ("{file: e.yaml, port: 1}", "engines[0].discover.port: is only for `dns`"),
        ("{file: e.yaml, records: srv}", "engines[0].discover.records: is only for `dns`"),
        ("{dns: a.b}", "engines[0].discover.port: is required with `records: a`"),
        (
            "{dns: a.b, records: srv, port: 1}",
            "engines[0].discover.port: is only for `records: a` and `aaaa`",
        ),
        ("{dns: 'a b', port: 1}", "engines[0].discover.dns: is 'a b'; allowed: text of the form"),
        (
            "{dns: a.b, port: 1, nameserver: 'x:y'}",
            "engines[0].discover.nameserver[0]: is 'x:y'; allowed: an",
        ),
        ("{dns: a.b, port: 1, leave_after: 0}", "engines[0].discover.leave_after: is 0; allowed: at least 1"),
        ("{dsn: a.b, port: 1}", "engines[0].discover.dsn: unknown key; did you mean `dns`?"),
    ],
)
def test_wrong_entries(tmp_path: Path, discover: str, complaint: str) -> None:
    """Each is named with its line, key and what is allowed."""
    text = f"engines:\n  - name: pool\n    discover: {discover}\n"
    assert any(line.startswith(f"anbar.yaml:3: {complaint}") for line in complaints(tmp_path, text))


def test_a_group_may_be_named_by_its_entry(tmp_path: Path) -> None:
    """A target's `engines` may name an entry with `discover`; another name is refused."""
    text = (
        "engines: [{name: pool, discover: {dns: _http._tcp.vllm, records: srv}}]\n"
        "router: {models: {x: {model: m, engines: [GROUP]}}}\n"
    )
    load(write(tmp_path, text.replace("GROUP", "pool")))
    (line,) = complaints(tmp_path, text.replace("GROUP", "poll"))
    assert "is 'poll', which is no engine's id; allowed: pool" in line


def test_url_beside_discover_and_placeholders_without(tmp_path: Path) -> None:
    """An entry has one of both, and `{host}` is nothing for an engine whose host is known."""
    text = "engines: [{name: a, url: 'http://h:1', discover: {file: x}}]"
    assert complaints(tmp_path, text) == [
        "anbar.yaml:1: engines[0].discover: cannot stand beside `url`: keep one"
    ]
    text = "engines: [{name: a, url: 'http://h:1', events: 'tcp://{host}:5557'}]"
    assert complaints(tmp_path, text) == [
        "anbar.yaml:1: engines[0].events: may hold {host} and {port} only beside `discover`"
    ]


def test_links_to_listed_files_stay(tmp_path: Path) -> None:
    """Kubernetes turns a link when it changes a file: the path is made absolute, and no link is followed."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    path = write(tmp_path, "engines: [{name: a, discover: {file: link/e.yaml}, api_key_file: link/key}]")
    (engine,) = load(path).config.engines
    assert engine.discover is not None
    assert (engine.discover.file, engine.api_key_file) == (tmp_path / "link/e.yaml", tmp_path / "link/key")


def test_every_form_of_an_item() -> None:
    """Addresses with and without a scheme, keys, and Prometheus' groups; JSON is YAML."""
    text = """\
- 10.0.0.5:8000
- https://gpu-b/base
- gpu-c:8000/
- gpu-d:8000/base/
- {url: "[fd00::1]:8000", tokenizer: ./llama, cost_file: a.json}
- targets: [10.0.0.6:8000, 10.0.0.7:8000]
  labels: {__scheme__: https, rack: r1, anbar_events: "tcp://{host}:5557"}
"""
    engines = found(text)
    assert [engine.url for engine in engines] == [
        "http://10.0.0.5:8000",
        "https://gpu-b/base",
        "http://gpu-c:8000/",
        "http://gpu-d:8000/base/",
        "http://[fd00::1]:8000",
        "https://10.0.0.6:8000",
        "https://10.0.0.7:8000",
    ]
    assert (engines[4].tokenizer, engines[4].cost_file) == ("/etc/anbar/llama", Path("/etc/anbar/a.json"))
    assert [engine.events for engine in engines] == [*[None] * 5, *["tcp://{host}:5557"] * 2]
    assert found(json.dumps([{"targets": ["h:1"]}]), Scheme.HTTPS)[0].url == "https://h:1"
    assert found("[]") == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "e.yaml:1: holds nothing, must hold a list; [] is one without engines"),
        ("a: 1", "e.yaml:1: holds a dict, must hold a list; [] is one without engines"),
        ("- a:1\n- [", "e.yaml:2: not valid YAML: expected the node content, but found '<stream end>'"),
        ("- a:1\n- 7", "e.yaml:2: [1]: is 7; allowed: an address, or keys and values"),
        (
            "- a:1\n- gpu-b",
            "e.yaml:2: [1].url: is 'gpu-b'; allowed: host:port, or http:// or https:// with a host, such as",
        ),
        ("- 10.0.0.5/base", "e.yaml:1: [0].url: is '10.0.0.5/base'; allowed: host:port, or http://"),
        (
            "- a:1/v1/",
            "e.yaml:1: [0].url: is 'http://a:1/v1/'; allowed: the base address, without /v1: http://a:1",
        ),
        ("- fe80::1:8000", "e.yaml:1: [0].url: is 'http://fe80::1:8000'; allowed: host and port"),
        ("- url: a:1\n  tokeniser: x", "e.yaml:2: [0].tokeniser: unknown key; did you mean `tokenizer`?"),
        ("- tokenizer: x", "e.yaml:1: [0].url: is required and not given"),
        ("- a:1\n- http://a:1/", "e.yaml:2: [1]: is the engine of [0] again"),
        ("- targets: [a:1]\n  label: {}", "e.yaml:2: [0].label: unknown key; did you mean `labels`?"),
        ("- targets: a:1", "e.yaml:1: [0].targets: allowed: a list of addresses"),
        (
            "- targets:\n  - a:1\n  - b",
            "e.yaml:3: [0].targets[1].url: is 'b'; allowed: host:port, or http://",
        ),
        (
            "- targets: [a:1]\n  labels:\n    anbar_tokeniser: x",
            "e.yaml:3: [0].labels.anbar_tokeniser: unknown label; did you mean `anbar_tokenizer`?",
        ),
        (
            "- targets: [a:1]\n  labels: {anbar_events: nowhere}",
            "e.yaml:2: [0].labels.anbar_events: is 'nowhere'; allowed: tcp://, a host and a port",
        ),
        (
            "- targets: [a:1]\n  labels: {__scheme__: ftp}",
            "e.yaml:2: [0].labels.__scheme__: is 'ftp'; allowed",
        ),
    ],
)
def test_a_bad_list_names_line_and_key(text: str, complaint: str) -> None:
    """Nothing of it is used."""
    (line,) = refused(text)
    assert line.startswith(complaint)


def test_all_problems_of_a_list_are_told_at_once() -> None:
    """In the order of their lines."""
    lines = refused("- 1\n- a:1\n- url: a:2\n  x: 1\n")
    assert [line.split(": ")[0:2] for line in lines] == [["e.yaml:1", "[0]"], ["e.yaml:4", "[2].x"]]


def test_what_an_entry_and_a_find_make() -> None:
    """The find's own words count before the entry's; `{host}` and `{port}` are the engine's; the id tells
    where it is."""
    made = engine_of(
        entry(events="tcp://{host}:5557", replay="ipc:///r/{port}", tokenizer="/t", api_key_env="K"),
        FoundEngine(url="http://[fd00::1]:8000/base/", tokenizer="/u", api_key_file=Path("/k")),
    )
    assert made == EngineConfig.model_construct(
        name="pool@[fd00::1]:8000/base",
        url="http://[fd00::1]:8000/base/",
        events="tcp://[fd00::1]:5557",
        replay="ipc:///r/8000",
        tokenizer="/u",
        api_key_file=Path("/k"),
    )


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("http://h", "http://h:80/"),
        ("https://h", "https://h:443"),
        ("http://H.example.", "http://h.example:80"),
        ("http://[::1]:8", "http://[::1]:8/"),
    ],
)
def test_one_place_written_in_two_ways(url: str, same: str) -> None:
    """It is one engine."""
    assert place_of(url) == place_of(same)


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("10.0.0.10", ("10.0.0.10", 53)),
        ("10.0.0.10:5353", ("10.0.0.10", 5353)),
        ("::1", ("::1", 53)),
        ("[::1]:5353", ("::1", 5353)),
        ("[::1", ("", 0)),
        ("a:b", ("", 0)),
    ],
)
def test_name_servers(text: str, server: tuple[str, int]) -> None:
    """An address, with a port or without; ("", 0) is none."""
    assert name_server(text) == server


def test_intervals_and_sources() -> None:
    """A file is looked at each second, the DNS each half minute, unless said otherwise."""
    file, dns = DiscoverConfig(file=Path("/e")), DiscoverConfig(dns="a.b", port=80)
    assert (file.look_every_s, dns.look_every_s) == (1.0, 30.0)
    assert (file.source, dns.source) == ("file /e", "A a.b port 80")


def test_a_stand_in_for_what_would_be_found() -> None:
    """`--emulated`: one engine under the entry's name, so that what names the group goes on to be right."""
    config = AnbarConfig.model_validate(
        {
            "engines": [{"name": "pool", "discover": {"dns": "vllm", "port": 8000}}],
            "router": {"models": {"x": {"model": "m", "engines": ["pool"]}}},
        }
    )
    emulated = emulate(config, Emulation(), lambda port: True)
    assert "pool stands in for those of A vllm port 8000" in emulated.assumptions[0]
