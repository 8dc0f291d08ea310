"""What the router expects of engines before they have shown anything."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from anbar.apps.calibrate.files import write_cost_file
from anbar.apps.emulator.default_cost import H100_8B, KV_BYTES_PER_TOKEN
from anbar.apps.router.cost_page import cost_gauges, costs_page
from anbar.apps.router.priors import Priors
from anbar.core.cost import EngineCost, PrefillWork, TokenCurve
from anbar.core.cost_file import CostFile, EngineType, Measured
from anbar.core.cost_prior import prefill_prior
from anbar.core.errors import ConfigError
from anbar.core.events import Tier
from anbar.core.prefill_learner import PREFILL_PRIOR
from anbar.route.costs import Finished

KIND = EngineType("m", "d", "bfloat16", "0.32.0", 16, KV_BYTES_PER_TOKEN, 8192)
CONTENT = CostFile(KIND, Measured("", "", 0.0), H100_8B)


def written(directory: Path, content: CostFile = CONTENT) -> Path:
    path = directory / "gpu.cost.json"
    write_cost_file(path, content)
    return path


def test_a_cost_file_is_where_learning_begins(tmp_path: Path) -> None:
    """Prefill and loads from host memory are as measured, those from a store as assumed; without a file
    all is as assumed."""
    costs, unknown = Priors().costs(written(tmp_path), "k"), Priors().costs(None, "k")
    assert costs.prefill == prefill_prior(CONTENT)
    assert costs.loads[Tier.HOST].s_per_token == pytest.approx(KV_BYTES_PER_TOKEN * 2e-11, rel=0.1)
    assert costs.loads[Tier.SHARED].s_per_token == pytest.approx(0.1 * costs.prefill.a_s_per_token)
    assert unknown.prefill == PREFILL_PRIOR


def test_engines_with_the_same_file_are_alike_and_others_are_not(tmp_path: Path) -> None:
    """What one shows is expected of those with the same file only."""
    priors, file = Priors(), written(tmp_path)
    one, like, other = priors.costs(file, "k"), priors.costs(file, "k"), priors.costs(None, "k")
    for _ in range(5):
        one.observe(Finished(PrefillWork.of(2000), 10 * one.prefill.seconds(2000)))
    assert like.prefill.seconds(2000) == pytest.approx(one.prefill.seconds(2000), rel=0.2)
    assert other.prefill == PREFILL_PRIOR


def test_a_file_without_copies_says_nothing_of_loads(tmp_path: Path) -> None:
    """An engine that was calibrated without offloading: its copies are not free, they are unknown."""
    cost = replace(H100_8B, load=EngineCost().load)
    costs = Priors().costs(written(tmp_path, replace(CONTENT, cost=cost)), "k")
    assert costs.loads[Tier.HOST].s_per_token == pytest.approx(0.05 * costs.prefill.a_s_per_token)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    """Missing, broken, and one whose steps take no time: the key, the file, the value and what is allowed."""
    with pytest.raises(ConfigError, match=r"^engines: 'e': cost_file: /nowhere/x: cannot be read"):
        Priors().costs(Path("/nowhere/x"), "engines: 'e': cost_file")
    data = json.loads(written(tmp_path).read_text())
    data["cost"]["front_s"] = -1
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=r"k: .*broken\.json: cost\.front_s is -1; allowed: numbers from 0"):
        Priors().costs(broken, "k")
    free = replace(CONTENT, cost=replace(H100_8B, tokens=TokenCurve()))
    with pytest.raises(ConfigError, match=r"k: .*cost\.tokens is \[\]; allowed: points whose seconds grow"):
        Priors().costs(written(tmp_path, free), "k")


def test_what_was_learned_is_shown() -> None:
    """Coefficients, number of requests behind them, and how far predictions were off."""
    costs = Priors().costs(None, "k")
    for _ in range(40):
        costs.observe(Finished(PrefillWork.of(2000), 1.0))
        costs.observe(Finished(PrefillWork.of(2000, 1900), 0.5, loaded={Tier.HOST: 1900, Tier.SHARED: 0}))
    page = costs_page(costs)
    prefill, load = page["prefill"], page["load"]
    assert isinstance(prefill, dict)
    assert isinstance(load, dict)
    assert prefill["s_per_running_answer"] > 0
    assert prefill["requests"] == load["host"]["requests"] == 40
    seconds = prefill["overhead_s"] + 2000 * prefill["s_per_token"] + 2000**2 * prefill["s_per_token2"]
    assert seconds == pytest.approx(1.0, rel=0.1)
    assert 0 < prefill["mean_error"] < 0.5
    assert load["host"]["s_per_token"] == pytest.approx(0.45 / 1900, rel=0.2)
    assert load["shared"]["requests"] == 0
    gauges = cost_gauges(costs)
    assert gauges.s_per_token == pytest.approx(prefill["s_per_token"], rel=1e-3)
    assert gauges.host_s_per_token == pytest.approx(load["host"]["s_per_token"], rel=1e-3)
