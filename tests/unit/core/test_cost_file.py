"""The cost file: what is written is read back, and what is wrong is named."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.core.cost import CopyCost, EngineCost, StoreCost, TierCost, TokenCurve
from anbar.core.cost_file import CostFile, EngineType, Measured, Residual, parse, render
from anbar.core.errors import ConfigError

COST = EngineCost(
    tokens=TokenCurve(((1, 0.010), (4, 0.016), (104, 0.216))),
    prefill_s_per_token2=1e-6,
    decode_s_per_kv_byte=1e-9,
    load=CopyCost(0.001, 0.0001, 1e-9),
    store=CopyCost(0.002, 0.0002, 2e-9),
    copy_delay=0.5,
    front_s=0.004,
    front_s_per_token=2e-6,
)
FILE = CostFile(
    EngineType("m", "cpu", "float32", "0.32.0", 32, 46080, 2048),
    Measured(
        "2026-01-02T03:04:05Z", "anbar calibrate 0.1.0", 50.0, (Residual("prompts", 9, 0.02, 0.1, 0.01),)
    ),
    COST,
)


def test_round_trip() -> None:
    """Everything that is written is read back."""
    assert parse(render(FILE), "f.json") == FILE


def test_costs_of_stores() -> None:
    """They are optional, by kind; a wrong one is named."""
    stores = {"s3": StoreCost(0.03, TierCost(0.1, 5e8), TierCost(0.2, 4e8))}
    content = replace(FILE, stores=stores)
    assert parse(render(content), "f.json") == content
    data = json.loads(render(content))
    data["stores"]["s3"]["load"]["bytes_per_s"] = 0
    with pytest.raises(ConfigError, match=r"stores\.s3\.load\.bytes_per_s is 0; allowed: numbers above 0"):
        parse(json.dumps(data), "f.json")
    data["stores"] = {"tape": {}}
    with pytest.raises(ConfigError, match=r"stores\.tape is not known; allowed: files, s3, valkey"):
        parse(json.dumps(data), "f.json")


_amount = st.floats(0, 1e6)


@given(
    st.lists(
        st.tuples(st.integers(1, 10**6), _amount), min_size=2, max_size=9, unique_by=lambda point: point[0]
    ),
    st.builds(CopyCost, _amount, _amount, _amount),
    st.floats(0, 1),
)
def test_round_trip_is_exact(points: list[tuple[int, float]], copy: CopyCost, delay: float) -> None:
    """No digit is lost: two readers of one file price alike."""
    tokens, seconds = zip(*points, strict=True)
    curve = TokenCurve(tuple(zip(sorted(tokens), sorted(seconds), strict=True)))
    content = CostFile(FILE.engine, FILE.measured, EngineCost(curve, load=copy, copy_delay=delay))
    assert parse(render(content), "f.json") == content


def _changed(path: tuple[str | int, ...], value: object) -> str:
    data = json.loads(render(FILE))
    table: Any = data
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), "anbar-cost-2", "format is \"anbar-cost-2\"; allowed: 'anbar-cost-1'"),
        (("engine", "block_size"), 0, "engine.block_size is 0; allowed: whole numbers from 1"),
        (("engine", "kv_bytes_per_token"), 1.5, "engine.kv_bytes_per_token is 1.5; allowed: whole"),
        (("engine", "model"), None, "engine.model is null; allowed: text"),
        (("cost", "front_s"), -1, "cost.front_s is -1; allowed: numbers from 0"),
        (("cost", "front_s"), 10**400, "cost.front_s is 1000000000"),
        (("engine", "block_size"), 10**400, "engine.block_size is 1000000000"),
        (("cost", "tokens"), [[1, 0.1], [2, 10**400]], "cost.tokens is [[1, 0.1], [2, 1000"),
        (("cost", "tokens"), [[1, 0.1], [10**400, 0.2]], "cost.tokens is [[1, 0.1], [1000"),
        (("cost", "front_s"), True, "cost.front_s is true; allowed: numbers from 0"),
        (("cost", "copy_delay"), 2, "cost.copy_delay is 2; allowed: numbers from 0 to 1"),
        (("cost", "load"), 3, "cost.load is 3; allowed: an object"),
        (("cost", "load", "s_per_byte"), "x", 'cost.load.s_per_byte is "x"; allowed: numbers'),
        (("cost", "tokens"), [[1, 0.1]], "cost.tokens is [[1, 0.1]]; allowed: [[tokens, seconds]"),
        (("cost", "tokens"), [[2, 0.1], [1, 0.2]], "cost.tokens is"),
        (("cost", "tokens"), [[1, 0.1], [2, 0.05]], "cost.tokens is"),
        (("cost", "tokens"), [[1, 0.1], [2.5, 0.2]], "cost.tokens is"),
        (("cost", "tokens"), 7, "cost.tokens is 7"),
        (("cost", "colour"), 7, "cost.colour is not known; allowed: copy_delay, "),
        (("measured", "residuals"), {}, "measured.residuals is {}; allowed: a list"),
        (("measured", "residuals", 0, "count"), -1, "measured.residuals[0].count is -1"),
    ],
)
def test_wrong_values(path: tuple[str | int, ...], value: object, message: str) -> None:
    """A wrong value is refused with file, key, value and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        parse(_changed(path, value), "f.json")
    assert str(caught.value).startswith("f.json: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("depth", [100_000, 900])
@pytest.mark.parametrize("key", ["format", "engine", "cost"])
def test_nested_without_end(key: str, depth: int) -> None:
    """Lists in lists, more of them than can be read, or read but not shown: refused like any other value."""
    text = _changed((key,), "here").replace('"here"', "[" * depth + "]" * depth, 1)
    with pytest.raises(ConfigError, match=r"^f\.json: .* allowed: "):
        parse(text, "f.json")


def test_missing_key() -> None:
    """A coefficient that is not there is not free: it is missing."""
    data = json.loads(render(FILE))
    del data["cost"]["front_s"]
    with pytest.raises(ConfigError, match=r"cost\.front_s is missing"):
        parse(json.dumps(data), "f.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '{"format": NaN}', '{"cost": 1}'])
def test_not_a_cost_file(text: str) -> None:
    """Any other text is refused in the same way."""
    with pytest.raises(ConfigError, match=r"f\.json: "):
        parse(text, "f.json")
