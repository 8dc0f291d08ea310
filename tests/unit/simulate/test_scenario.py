"""Scenarios: what is refused and how, and that those of the package hold together."""

from pathlib import Path

import pytest

from anbar.apps.simulate.report import prepare, run_scenario
from anbar.apps.simulate.scenario_file import Found, bundled, parse_scenario, read_scenario
from anbar.core.errors import ConfigError

WORKLOAD = "workload: {streams: [{rate: 1}]}\n"


@pytest.mark.parametrize("name", bundled())
def test_bundled_scenarios_can_be_run(name: str) -> None:
    """Each says what it is about, and has a load that its fleet can serve."""
    found = read_scenario(name)
    setup, make_load, _ = prepare(found)
    assert found.scenario.about
    assert make_load().longest <= setup.kv_tokens


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "s.yaml:1: holds no settings; a scenario needs at least `workload`"),
        ("# nothing\n", "s.yaml:1: holds no settings; a scenario needs"),
        ("a: [", "s.yaml:1: not valid YAML"),
        ("fleet: {}\n", "s.yaml:1: workload: is required"),
        (
            WORKLOAD + "flet: {}\n",
            "s.yaml:2: flet: unknown key; did you mean `fleet`? (allowed here: ",
        ),
        (WORKLOAD + "fleet:\n  engines: 0\n", "s.yaml:3: fleet.engines: is 0; allowed: at least 1"),
        (WORKLOAD + "fleet:\n  gpu: H1000\n", "s.yaml:3: fleet.gpu: is 'H1000'; allowed: A10G, "),
        (
            WORKLOAD + "cache: {modes: [some]}\n",
            "s.yaml:2: cache.modes[0]: is 'some'; allowed: none, ",
        ),
        (
            WORKLOAD + "cache:\n  modes:\n    - none\n    - none\n",
            "s.yaml:5: cache.modes[1]: is none, as an earlier one is",
        ),
        (
            WORKLOAD + "fleet: {block_size: 12}\n",
            "s.yaml:2: fleet.block_size: is 12; allowed: multiples of 8",
        ),
        (
            WORKLOAD + "sweep: {kv_tokens: [9]}\n",
            "s.yaml:2: sweep.kv_tokens: is [9]; allowed: at least 2 items",
        ),
        ("workload: {}\n", "s.yaml:1: workload: needs `trace` or `streams`, and not both"),
        ("workload: {streams: [{}]}\n", "s.yaml:1: workload.streams[0]: needs `rate` or `clients`, and not"),
        (
            "workload:\n  streams:\n    - rate: 1\n      question_tokens: [9, 3]\n",
            "s.yaml:4: workload.streams[0].question_tokens: is [9, 3]; allowed: [least, most], the first not",
        ),
        (
            WORKLOAD + "events: [{at_s: 1, node: 1}]\n",
            "s.yaml:2: events[0].node: is 1; allowed: 0 to 0, by `cache.store.nodes`",
        ),
        (WORKLOAD + "fleet: {prefill_engines: 1}\n", "s.yaml: 2 problems"),
        (
            WORKLOAD + "cache: {modes: [none]}\nsweep: {kv_tokens: [10, 20]}\n",
            "s.yaml:3: sweep: compares: `cache.modes` needs none and another one",
        ),
        (WORKLOAD + "seed: 1\nseed: 2\n", "s.yaml:3: seed: given twice, first in line 2; keep one"),
    ],
)
def test_what_is_wrong_is_named(text: str, complaint: str) -> None:
    """File, line, key, value and what is allowed."""
    with pytest.raises(ConfigError) as raised:
        parse_scenario(text, "s.yaml")
    assert str(raised.value).startswith(complaint)


def test_a_name_that_is_nobody_s() -> None:
    """Neither a file nor a scenario of the package."""
    with pytest.raises(ConfigError, match=r"'nix': cannot be read: No such file.*allowed: a file, or one"):
        read_scenario("nix")
    with pytest.raises(ConfigError, match=r"did you mean `chat`\?"):
        read_scenario("chatt")


@pytest.mark.parametrize(
    ("trace", "first", "complaint"),
    [
        ("", 0, "log.jsonl: is empty"),
        ('{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}', 1, "allowed: below 1"),
        ('{"timestamp": 0}', 0, "log.jsonl:1: "),
        (
            '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}',
            0,
            "fleet.block_size: is 104; the trace's blocks have 512 tokens",
        ),
    ],
)
def test_traces_that_cannot_be_used(tmp_path: Path, trace: str, first: int, complaint: str) -> None:
    """Empty, cut to nothing, with a line that is none, with blocks that do not fit the engine's."""
    (tmp_path / "log.jsonl").write_text(trace)
    text = f"workload: {{trace: {{path: log.jsonl, first: {first}}}}}\nfleet: {{block_size: 104}}\n"
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r".*") as raised:
        prepare(read_scenario(str(tmp_path / "s.yaml")))
    assert complaint in str(raised.value)


def test_a_model_that_nobody_knows() -> None:
    """The key is named, and the models that there are."""
    scenario = parse_scenario(WORKLOAD + "fleet: {model: Lama-9}\n", "s.yaml")
    with pytest.raises(ConfigError, match=r"fleet.model: model 'Lama-9' is not in the catalogue"):
        prepare(Found("s", scenario, Path()))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("fleet:\n  model: Lama-9\n", "3: fleet.model: model 'Lama-9' is not in the catalogue"),
        ("fleet:\n  model: Llama-3.1-70B\n  gpu: L40S\n", "4: fleet.gpu: the weights (141 GB) do not fit"),
        (
            "fleet: {model: Llama-3.1-70B, gpu: L40S, kv_tokens: 20000}\n",
            "2: fleet.gpu: the weights (141 GB) do not fit on 1 x L40S",
        ),
        ("fleet:\n  kv_tokens: 300\n", "3: fleet.kv_tokens: an engine holds 300 tokens of KV"),
        (
            "fleet:\n  kv_tokens: 100000000\n",
            "3: fleet.kv_tokens: is 100,000,000; 1 x H100 hold at most 487,8",
        ),
        ("fleet:\n  tp: 3\n", "3: fleet.tp: is 3, and the model has 32 heads; allowed: 1, 2, 4, 8, 16, 32"),
        ("cache:\n  host_bytes: 1000\n", "3: cache.host_bytes: is 1,000; allowed with mode native: at least"),
        ("cache:\n  host_bytes: 100000TB\n", "3: cache.host_bytes: is 100,000 TB an engine; allowed: "),
        (
            "fleet: {block_size: 64}\ncache: {chunk_tokens: 100}\n",
            "3: cache.chunk_tokens: is 100; allowed: whole blocks, multiples of 64",
        ),
        (
            "fleet:\n  model: Mistral-7B\n",
            "3: fleet.model: its context has 32,768 tokens, and the longest request needs 40,200",
        ),
    ],
)
def test_what_cannot_be_run_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    """With the line of the key that it is about, or of what that would stand in."""
    tokens = 40_000 if "Mistral" in text else 200
    stream = f"{{rate: 1, sessions: 1, question_tokens: {tokens}}}"
    (tmp_path / "s.yaml").write_text(f"workload: {{streams: [{stream}]}}\n{text}")
    with pytest.raises(ConfigError) as raised:
        run_scenario(read_scenario(str(tmp_path / "s.yaml")))
    assert str(raised.value).startswith(f"{tmp_path / 's.yaml'}:{complaint}")


def test_a_trace_cut_to_nothing_names_the_line(tmp_path: Path) -> None:
    """And how many requests there are."""
    (tmp_path / "log.jsonl").write_text('{"timestamp": 0, "input_length": 600, "output_length": 1}\n')
    (tmp_path / "s.yaml").write_text("workload:\n  trace:\n    path: log.jsonl\n    first: 5\n")
    with pytest.raises(ConfigError, match=r"s\.yaml:4: workload\.trace\.first: is 5; allowed: below 1"):
        run_scenario(read_scenario(str(tmp_path / "s.yaml")))
