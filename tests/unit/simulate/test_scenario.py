"""Scenarios: what is refused and how, and that those of the package hold together."""

from pathlib import Path

import pytest

from anbar.apps.simulate.report import prepare
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
        ("", "s.yaml:1: holds no settings"),
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


@pytest.mark.parametrize(
    ("trace", "first", "complaint"),
    [
        ("", 0, "log.jsonl: is empty"),
        ('{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}', 1, "allowed: below 1"),
        ('{"timestamp": 0}', 0, "log.jsonl:1: "),
        (
            '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}',
            0,
            "block_size is 100; the trace's blocks have 512 tokens",
        ),
    ],
)
def test_traces_that_cannot_be_used(tmp_path: Path, trace: str, first: int, complaint: str) -> None:
    """Empty, cut to nothing, with a line that is none, with blocks that do not fit the engine's."""
    (tmp_path / "log.jsonl").write_text(trace)
    text = f"workload: {{trace: {{path: log.jsonl, first: {first}}}}}\nfleet: {{block_size: 100}}\n"
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r".*") as raised:
        prepare(read_scenario(str(tmp_path / "s.yaml")))
    assert complaint in str(raised.value)


def test_a_model_that_nobody_knows() -> None:
    """The key is named, and the models that there are."""
    scenario = parse_scenario(WORKLOAD + "fleet: {model: Lama-9}\n", "s.yaml")
    with pytest.raises(ConfigError, match=r"fleet.model: model 'Lama-9' is not in the catalogue"):
        prepare(Found("s", scenario, Path()))
