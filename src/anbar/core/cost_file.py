"""The cost file: what one type of engine costs, as text. Pure; applications read and write the file itself.

JSON, one file per engine type; `parse` is the inverse of `render`. It refuses what it does not know, naming
file, key, value and what is allowed: a misspelt coefficient would be a silently free one.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from anbar.core.cost import CopyCost, EngineCost, StoreCost, TierCost, TokenCurve
from anbar.core.errors import ConfigError

FORMAT = "anbar-cost-1"
"""Changes when an older reader would misunderstand a newer file."""
STORE_KINDS = ("files", "valkey", "s3")
"""Kinds of stores that are made of no others."""
_MOST_WHOLE = 2**53
"""Whole numbers beyond it are no counts of anything, and JSON's readers do not agree on them."""


@dataclass(frozen=True, slots=True)
class EngineType:
    """What was measured: figures hold for engines that are equal in all of it."""

    model: str
    """As served, or the directory or hub name it was loaded from."""
    device: str
    """A name that means something to its users: "cpu", "NVIDIA H200"."""
    dtype: str
    vllm: str
    """Release."""
    block_size: int
    """Tokens per block."""
    kv_bytes_per_token: int
    """Over all layers and workers; `decode_s_per_kv_byte` and copies are charged by it."""
    max_num_batched_tokens: int
    """Token budget of a step when it was measured."""


@dataclass(frozen=True, slots=True)
class Residual:
    """How well the costs explain one kind of measurement. Shares of what was measured: 0.05 is 5 %."""

    what: str
    count: int
    median_error: float
    worst_error: float
    spread: float
    """How far equal measurements were apart, the largest from the smallest: no fit can do better than half
    of it. 0: none was repeated."""


@dataclass(frozen=True, slots=True)
class Measured:
    """When and how."""

    at: str
    """UTC, ISO 8601."""
    by: str
    """The command and its version."""
    seconds: float
    """How long it took."""
    residuals: tuple[Residual, ...] = ()


@dataclass(frozen=True, slots=True)
class CostFile:
    """The content of a cost file."""

    engine: EngineType
    measured: Measured
    cost: EngineCost
    stores: Mapping[str, StoreCost] = field(default_factory=dict)
    """By kind of store (`cache.store.kind`): what one call takes, as far as it was measured. Written by hand:
    `anbar calibrate` does not see stores."""


def render(content: CostFile) -> str:
    """The text of the file."""
    cost = asdict(content.cost)
    cost["tokens"] = cost["tokens"]["points"]
    measured = asdict(content.measured)
    data = {"format": FORMAT, "engine": asdict(content.engine), "measured": measured, "cost": cost}
    if content.stores:
        data["stores"] = {kind: asdict(store) for kind, store in content.stores.items()}
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def parse(text: str, origin: str) -> CostFile:
    """The content of `text`, which came from `origin` (a path, for messages). Raises ConfigError."""
    try:
        return _parse(text, origin)
    except RecursionError as error:
        raise ConfigError(f"{origin}: nested too deeply; allowed: a file by `anbar calibrate`") from error


def _parse(text: str, origin: str) -> CostFile:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{origin}: not JSON: {error}; allowed: a file by `anbar calibrate`") from error
    top = _Table(origin, "", data)
    if top.text("format") != FORMAT:
        raise top.wrong("format", f"allowed: {FORMAT!r}")
    content = CostFile(
        _engine(top.table("engine")),
        _measured(top.table("measured")),
        _cost(top.table("cost")),
        _stores(top.table("stores")) if top.has("stores") else {},
    )
    top.end()
    return content


def _engine(table: "_Table") -> EngineType:
    engine = EngineType(
        model=table.text("model"),
        device=table.text("device"),
        dtype=table.text("dtype"),
        vllm=table.text("vllm"),
        block_size=table.whole("block_size", 1),
        kv_bytes_per_token=table.whole("kv_bytes_per_token", 1),
        max_num_batched_tokens=table.whole("max_num_batched_tokens", 1),
    )
    table.end()
    return engine


def _measured(table: "_Table") -> Measured:
    residuals = []
    for row in table.tables("residuals"):
        residuals.append(
            Residual(
                row.text("what"),
                row.whole("count", 0),
                *(row.number(name) for name in ("median_error", "worst_error", "spread")),
            )
        )
        row.end()
    measured = Measured(table.text("at"), table.text("by"), table.number("seconds"), tuple(residuals))
    table.end()
    return measured


def _cost(table: "_Table") -> EngineCost:
    cost = EngineCost(
        tokens=_curve(table, "tokens"),
        load=_copy(table.table("load")),
        store=_copy(table.table("store")),
        copy_delay=table.number("copy_delay", 1.0),
        prefill_s_per_token2=table.number("prefill_s_per_token2"),
        decode_s_per_kv_byte=table.number("decode_s_per_kv_byte"),
        front_s=table.number("front_s"),
        front_s_per_token=table.number("front_s_per_token"),
    )
    table.end()
    return cost


def _stores(table: "_Table") -> dict[str, StoreCost]:
    stores = {}
    for kind in STORE_KINDS:
        if table.has(kind):
            one = table.table(kind)
            stores[kind] = StoreCost(
                one.number("lookup_s"), _tier(one.table("load")), _tier(one.table("store"))
            )
            one.end()
    table.end(STORE_KINDS)
    return stores


def _tier(table: "_Table") -> TierCost:
    cost = TierCost(table.number("latency_s"), table.number("bytes_per_s"))
    if not cost.bytes_per_s:
        raise table.wrong("bytes_per_s", "allowed: numbers above 0")
    table.end()
    return cost


def _curve(table: "_Table", key: str) -> TokenCurve:
    points = table.take(key)
    try:
        return TokenCurve(tuple((_whole(tokens), _number(seconds)) for tokens, seconds in points))
    except (TypeError, ValueError) as error:
        allowed = "[[tokens, seconds], …], both growing, at least two pairs or none"
        raise table.wrong(key, f"allowed: {allowed}") from error


def _copy(table: "_Table") -> CopyCost:
    copy = CopyCost(*(table.number(item.name) for item in fields(CopyCost)))
    table.end()
    return copy


def _number(value: object) -> float:
    """A finite number; ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError from error
    if not math.isfinite(number):
        raise ValueError
    return number


def _whole(value: object) -> int:
    """A whole number of at most _MOST_WHOLE; ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or value > _MOST_WHOLE:
        raise ValueError
    return value


class _Table:
    """One JSON object whose keys are taken one after the other; what is left at the end is unknown."""

    def __init__(self, origin: str, path: str, data: object) -> None:
        self._origin = origin
        self._path = path
        if not isinstance(data, Mapping):
            where = f"{origin}: {path or 'the file'}"
            raise ConfigError(f"{where} is {_shown(data)}; allowed: an object")
        self._data: Mapping[str, Any] = data
        self._taken: set[str] = set()

    def has(self, key: str) -> bool:
        return key in self._data

    def take(self, key: str) -> Any:
        if key not in self._data:
            raise ConfigError(f"{self._origin}: {self._name(key)} is missing")
        self._taken.add(key)
        return self._data[key]

    def table(self, key: str) -> "_Table":
        return _Table(self._origin, self._name(key), self.take(key))

    def tables(self, key: str) -> list["_Table"]:
        rows = self.take(key)
        if not isinstance(rows, list):
            raise self.wrong(key, "allowed: a list of objects")
        return [_Table(self._origin, f"{self._name(key)}[{i}]", row) for i, row in enumerate(rows)]

    def text(self, key: str) -> str:
        value = self.take(key)
        if not isinstance(value, str):
            raise self.wrong(key, "allowed: text")
        return value

    def whole(self, key: str, least: int) -> int:
        value = self.take(key)
        try:
            number = _whole(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise self.wrong(key, f"allowed: whole numbers from {least} to 2^53")
        return number

    def number(self, key: str, most: float = float("inf")) -> float:
        value = self.take(key)
        try:
            number = _number(value)
        except ValueError:
            number = -1.0
        if not 0.0 <= number <= most:
            limit = f" to {most:g}" if most < float("inf") else ""
            raise self.wrong(key, f"allowed: numbers from 0{limit}")
        return number

    def end(self, known: Iterable[str] = ()) -> None:
        """All that is known was taken; `known`: what might have been there, too."""
        unknown = sorted(set(self._data) - self._taken)
        if unknown:
            allowed = ", ".join(sorted({*self._taken, *known}))
            raise ConfigError(f"{self._origin}: {self._name(unknown[0])} is not known; allowed: {allowed}")

    def wrong(self, key: str, allowed: str) -> ConfigError:
        return ConfigError(f"{self._origin}: {self._name(key)} is {_shown(self._data[key])}; {allowed}")

    def _name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:80] + "…"
