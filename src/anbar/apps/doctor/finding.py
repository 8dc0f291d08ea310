"""One thing that doctor looked at."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How much it matters."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """`topic` in a word or two, `detail` what was found, `fix` what to do ("" when all is well)."""

    level: Level
    topic: str
    detail: str
    fix: str = ""


def ok(topic: str, detail: str) -> Finding:
    return Finding(Level.OK, topic, detail)


def warn(topic: str, detail: str, fix: str) -> Finding:
    return Finding(Level.WARN, topic, detail, fix)


def fail(topic: str, detail: str, fix: str) -> Finding:
    return Finding(Level.FAIL, topic, detail, fix)
