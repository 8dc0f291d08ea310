"""Every engine swapped for an emulated one: what is kept, what is assumed, and where values come from."""

from pathlib import Path

import pytest

from anbar.config.checks import check, engine_ids
from anbar.config.emulate import Emulated, Emulation, emulate
from anbar.config.load import load, replaced
from anbar.config.models import AnbarConfig, Device
from anbar.core.errors import ConfigError

ATTACHED = {
    "name": "gpu-a",
    "url": "http://10.0.0.5:8000",
    "api_key_env": "KEY",
    "events": "tcp://10.0.0.5:5557",
}
LAUNCHED = {
    "name": "l",
    "launch": {"model": "/models/llama", "device": "cuda", "count": 2, "args": ["--x", "1"]},
}


def swapped(*engines: dict[str, object], emulation: Emulation | None = None, taken: int = 0) -> Emulated:
    config = AnbarConfig.model_validate({"engines": engines})
    return emulate(config, emulation or Emulation(), lambda port: port != taken)


def test_launched_engines_keep_what_they_say() -> None:
    """Model, name, number, ports and arguments are those of the real ones; only the device is another."""
    found = swapped(LAUNCHED)
    (before,) = AnbarConfig.model_validate({"engines": [LAUNCHED]}).engines
    (after,) = found.config.engines
    assert before.launch is not None
    assert after.launch == before.launch.model_copy(update={"device": Device.EMULATED})
    assert engine_ids(after) == ["l-0", "l-1"]
    assert found.assumptions == ()


@pytest.mark.parametrize(
    ("tokenizer", "model", "served"),
    [
        (None, "smollm2-135m-instruct", None),
        ("/models/llama-8b", "/models/llama-8b", "llama-8b"),
        ("org/llama-8b", "org/llama-8b", "org/llama-8b"),
    ],
)
def test_stand_ins_for_attached_engines(tokenizer: str | None, model: str, served: str | None) -> None:
    """They answer under the entry's name, as the model of its tokenizer, and what was assumed is said. Keys
    and addresses of the real one are not used."""
    found = swapped({**ATTACHED, "tokenizer": tokenizer})
    (engine,) = found.config.engines
    assert engine.launch is not None
    assert (engine.launch.model, engine.launch.served_name) == (model, served)
    assert (engine.url, engine_ids(engine)) == ("http://10.0.0.5:8000", ["gpu-a"])
    assert (engine.api_key_env, engine.events, engine.tokenizer) == (None, None, None)
    assert list(check(found.config)) == []
    (said,) = found.assumptions
    assert said.startswith("gpu-a stands in for http://10.0.0.5:8000: assumed to serve")
    assert ("engines[].tokenizer" in said) is (tokenizer is None)


def test_ports_of_stand_ins() -> None:
    """None that the configuration names, addresses of attached engines included, and none that is taken."""
    here = {"name": "here", "url": "http://127.0.0.1:8102"}
    found = swapped({**LAUNCHED}, ATTACHED, here, taken=8103)
    ports = [engine.launch.port for engine in found.config.engines if engine.launch is not None]
    assert ports == [8100, 8104, 8105]
    assert list(check(found.config)) == []


def test_options_become_arguments() -> None:
    """Speed and cost are those of every engine, after its own arguments: the last one wins."""
    found = swapped(LAUNCHED, ATTACHED, emulation=Emulation(speed=2.5, cost="/c.json"))
    launched, attached = (engine.launch for engine in found.config.engines)
    assert launched is not None
    assert attached is not None
    assert launched.args == ("--x", "1", "--speed", "2.5", "--cost", "/c.json")
    assert attached.args == ("--speed", "2.5", "--cost", "/c.json")


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_speeds_that_cannot_be(speed: float) -> None:
    """The option, its value and what is allowed."""
    with pytest.raises(ConfigError, match=r"command line --speed: is .*; allowed: "):
        Emulation(speed=speed)


def test_origins_of_swapped_values(tmp_path: Path) -> None:
    """What the option changed says so; everything else still names its line. The result is a configuration
    that loads."""
    path = tmp_path / "anbar.yaml"
    path.write_text("engines:\n  - name: a\n    launch:\n      device: cuda\n      count: 3\n")
    loaded = load(path)
    found = emulate(loaded.config, Emulation(), lambda port: True)
    after = replaced(loaded, found.config, "command line --emulated")
    assert after.origins["engines[0].launch.device"] == "command line --emulated"
    assert after.origins["engines[0].launch.count"] == f"{path}:5"
    assert after.origins["router.port"] == "default"
    assert AnbarConfig.model_validate(after.config.model_dump(mode="json")) == after.config
    assert set(after.origins) == set(loaded.origins)


@pytest.mark.parametrize(
    ("emulation", "argument", "expected"),
    [
        (Emulation(), "/own.json", "/own.json"),
        (Emulation(cost="/c.json"), "/c.json", "/c.json"),
        (Emulation(cost="none"), "none", None),
        (Emulation(speed=10.0), "/own.json", None),
    ],
)
def test_a_cost_file_is_what_the_emulated_engine_takes(
    emulation: Emulation, argument: str, expected: str | None
) -> None:
    """An entry's cost file sets the pace of the engine in its place, unless the command line names another;
    and the router expects what will be, or nothing where no file says."""
    (engine,) = swapped({**ATTACHED, "cost_file": "/own.json"}, emulation=emulation).config.engines
    assert engine.launch is not None
    assert engine.launch.args[engine.launch.args.index("--cost") + 1] == argument
    assert engine.cost_file == (Path(expected) if expected else None)


def test_lmcache_is_not_modelled() -> None:
    """It is said, and the emulated engines get no connector: they have no such tier."""
    config = AnbarConfig.model_validate({"engines": [LAUNCHED], "cache": {"mode": "lmcache"}})
    found = emulate(config, Emulation(), lambda port: True)
    (said,) = found.assumptions
    assert "LMCache is not modelled" in said
