"""Fails when the pinned requirements do not satisfy pyproject.toml, or two files pin one package differently.

Run with .venv, which has `packaging`.
"""

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PLUGIN_NEEDS = ("msgspec", "numpy", "xxhash")
"""What anbar imports inside an engine (`anbar.apps.interpreter` asks a foreign interpreter for the same)."""


def main() -> int:
    """Exit status 1 when anything disagrees; a line for each."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [Requirement(text) for text in project["dependencies"]]
    pins = {
        name: _pins(ROOT / "requirements" / f"{name}.txt") for name in ("base", "dev", "engine", "lmcache")
    }
    problems = []
    for need in needs:
        name = canonicalize_name(need.name)
        pinned = pins["base"].get(name)
        if pinned is None:
            problems.append(f"base.txt does not pin {name}, which pyproject.toml needs")
        elif pinned not in need.specifier:
            problems.append(f"base.txt pins {name}=={pinned}, pyproject.toml wants {need.specifier}")
        engine = pins["engine"].get(name)
        if engine is not None and engine not in need.specifier:
            problems.append(f"engine.txt pins {name}=={engine}, pyproject.toml wants {need.specifier}")
    for need in map(Requirement, project["optional-dependencies"]["engine"]):
        engine = pins["engine"].get(canonicalize_name(need.name))
        if engine is None or engine not in need.specifier:
            problems.append(
                f"engine.txt pins {need.name}=={engine}, the extra `engine` wants {need.specifier}"
            )
    problems += [f"engine.txt does not pin {name}" for name in PLUGIN_NEEDS if name not in pins["engine"]]
    both = pins["base"].keys() & pins["dev"].keys()
    problems += [f"{name} is pinned in base.txt and in dev.txt" for name in sorted(both)]
    both = pins["engine"].keys() & pins["lmcache"].keys()
    problems += [f"{name} is pinned in engine.txt and in lmcache.txt" for name in sorted(both)]
    for problem in problems:
        print(problem)
    print(f"requirements: {sum(map(len, pins.values()))} pins, {len(problems)} problems")
    return 1 if problems else 0


def _pins(file: Path) -> dict[str, Version]:
    found: dict[str, Version] = {}
    for line in file.read_text().splitlines():
        text = line.split("#")[0].strip()
        if text:
            name, _, version = text.partition("==")
            found[canonicalize_name(name)] = Version(version)
    return found


if __name__ == "__main__":
    sys.exit(main())
