"""The engine interpreter: found, looked at, and refused with the command that helps."""

from pathlib import Path

import pytest

from anbar.apps.interpreter import STORE_PACKAGES, choose, complaint, inspect
from anbar.apps.stores import packages_of
from anbar.config.models import AnbarConfig
from anbar.core.errors import StackError
from tests.unit.stack.processes import fake_python


def test_environment_wins() -> None:
    """ANBAR_ENGINE_PYTHON names the interpreter, and is named as the reason."""
    assert choose({"ANBAR_ENGINE_PYTHON": "/x/python"}) == (
        Path("/x/python"),
        "environment ANBAR_ENGINE_PYTHON",
    )


def test_relative_and_bare_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path is taken from the working directory, a bare name from PATH; a link is not followed, since a
    virtual environment's python is one."""
    python = fake_python(tmp_path)
    (tmp_path / "link").symlink_to(python)
    monkeypatch.chdir(tmp_path)
    relative, _ = choose({"ANBAR_ENGINE_PYTHON": "./link"})
    bare, _ = choose({"ANBAR_ENGINE_PYTHON": "link", "PATH": str(tmp_path)})
    assert relative == bare == tmp_path / "link"
    assert inspect(relative, "test").vllm == "0.32.0"


def test_good_interpreter(tmp_path: Path) -> None:
    """A CPU build of the right version with anbar in it."""
    found = inspect(fake_python(tmp_path), "test")
    assert (found.vllm, found.cpu_build, found.anbar) == ("0.32.0", True, "0.1.0")
    assert found.missing == STORE_PACKAGES
    assert complaint(found, needs_plugin=True, on_gpu=False) is None


@pytest.mark.parametrize(
    ("vllm", "anbar", "needs_plugin", "words"),
    [
        (None, None, False, "no vLLM in .*fix: .*python -m pip install 'vllm==0.32.*'"),
        ("0.30.1", None, False, "vLLM 0.30.1 in .* is not supported, only 0.32.*pip install"),
        ("0.32.1", None, True, "anbar is not installed in .*fix: .*python -m pip install --no-deps"),
        ("0.32.1", "0.0.9", True, "anbar 0.0.9 in .* is not this version"),
    ],
)
def test_unfit_interpreters(
    tmp_path: Path, vllm: str | None, anbar: str | None, needs_plugin: bool, words: str
) -> None:
    """Each defect has its message with the exact command."""
    found = inspect(fake_python(tmp_path, vllm=vllm, anbar=anbar), "test")
    text = complaint(found, needs_plugin=needs_plugin, on_gpu=True)
    assert text is not None
    with pytest.raises(StackError, match=words):
        raise StackError(text)


def test_fix_on_a_machine_without_a_gpu(tmp_path: Path) -> None:
    """vLLM's usual build would be of no use there: the checkout's own environment is what helps."""
    found = inspect(fake_python(tmp_path, vllm=None, anbar=None), "test")
    text = complaint(found, needs_plugin=False, on_gpu=False)
    assert text is not None
    assert "install-engine" in text
    assert "pip install" not in text


SEALED = {"tenants": {"header": "x-tenant", "default": {"encrypt": True}}}
VALKEY = {"kind": "valkey", "valkey": {"nodes": ["cache:6379"]}}
S3 = {"kind": "s3", "s3": {"bucket": "kv-cache"}}


@pytest.mark.parametrize(
    ("store", "tenants", "needed"),
    [
        ({}, {}, ""),
        ({}, SEALED, "cryptography"),
        (VALKEY, {}, "valkey"),
        ({"kind": "layered", "members": [VALKEY, S3]}, SEALED, "cryptography obstore valkey"),
    ],
)
def test_packages_of_the_store(tmp_path: Path, store: object, tenants: object, needed: str) -> None:
    """An interpreter with none of the packages that only some stores and tenants need: those that this
    configuration needs are named, with the command; without a shared store none is."""
    python = fake_python(tmp_path)
    found = inspect(python, "test")
    config = AnbarConfig.model_validate({"cache": {"mode": "shared", "store": store}, **tenants})
    said = complaint(found, needs_plugin=True, on_gpu=False, packages=packages_of(config))
    fix = f"Anbar's plugin needs {needed} in {python} (test); fix: {python} -m pip install {needed}"
    assert said == (fix if needed else None)
    native = AnbarConfig.model_validate({"cache": {"mode": "native"}, **tenants})
    assert packages_of(native) == set()


def test_anbar_is_not_needed_for_stock_offload(tmp_path: Path) -> None:
    """native on a GPU runs no Anbar code in the engine."""
    found = inspect(fake_python(tmp_path, anbar=None), "test")
    assert complaint(found, needs_plugin=False, on_gpu=True) is None


@pytest.mark.parametrize("kind", ["missing", "not executable", "not a Python", "directory"])
def test_broken_interpreters(tmp_path: Path, kind: str) -> None:
    """The path and where it came from are in the message."""
    path = tmp_path / "python"
    if kind == "directory":
        path.mkdir()
    elif kind != "missing":
        path.write_text("#!/bin/sh\necho hello\n")
        path.chmod(0o755 if kind == "not a Python" else 0o644)
    with pytest.raises(StackError, match=r"the engine interpreter .*python \(test\)"):
        inspect(path, "test")
