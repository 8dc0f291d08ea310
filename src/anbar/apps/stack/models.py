"""Where the model of each launched entry is: unpacked, a directory, left to vLLM, or the emulator's own."""

from collections.abc import Mapping
from pathlib import Path

from anbar.apps.emulator.tiny_model import write_tiny_model
from anbar.apps.interpreter import Interpreter, checkout
from anbar.apps.model import ensure_default, models_dir
from anbar.apps.stack.placement import is_emulated, launched_entries
from anbar.apps.stack.reporter import Reporter
from anbar.config.models import DEFAULT_MODEL, AnbarConfig
from anbar.core.errors import StackError

TINY_MODEL = "tiny-model"
"""Name of the directory in the scratch directory that holds the emulator's own tokenizer."""


def locate_models(
    config: AnbarConfig,
    interpreter: Interpreter | None,
    environ: Mapping[str, str],
    scratch_dir: Path,
    reporter: Reporter,
) -> Mapping[str, str]:
    """By the name of each launched entry: a directory, or a name that vLLM is to look up.

    Unpacks the small model where vLLM needs it (`interpreter` is vLLM's; None: no engine needs it). Emulated
    engines never cause more than a tokenizer of a few kilobytes to be written to `scratch_dir`.
    """
    models: dict[str, str] = {}
    for entry in launched_entries(config):
        assert entry.launch is not None, "launched entries have a launch"
        model = entry.launch.model
        if not is_emulated(entry):
            assert interpreter is not None, "vLLM needs an interpreter"
            models[entry.name] = _real(model, interpreter, environ, reporter)
            continue
        found = tokenizer_of(model, environ)
        if found is None:
            reporter.note(f"{entry.name}: {no_tokenizer(model)}")
            found = write_tiny_model(scratch_dir / TINY_MODEL)
        models[entry.name] = str(found)
    return models


def tokenizer_of(model: str, environ: Mapping[str, str]) -> Path | None:
    """The directory of a model whose tokenizer is on this machine; None: an emulator uses its own."""
    place = models_dir(environ) / model if model == DEFAULT_MODEL else Path(model)
    return place.resolve() if (place / "tokenizer.json").is_file() else None


def no_tokenizer(model: str) -> str:
    """What follows for emulated engines, in words, and how they get the model's tokenizer."""
    if model != DEFAULT_MODEL:
        way = "name the model's directory in launch.model"
    else:
        way = (
            "`make model` (which installs vLLM)" if checkout() else "`anbar model`, where vLLM is installed,"
        )
        way += " unpacks it"
    return (
        f"no tokenizer of {model} is here and none is fetched: the emulator's own takes its place, "
        f"about a token per letter; {way} to have the model's"
    )


def _real(model: str, interpreter: Interpreter, environ: Mapping[str, str], reporter: Reporter) -> str:
    if model == DEFAULT_MODEL:
        return str(ensure_default(interpreter, models_dir(environ), reporter.note))
    if Path(model).is_dir():
        return str(Path(model).resolve())
    if model.startswith("/"):
        raise StackError(f"the model directory {model} does not exist; correct launch.model")
    return model
