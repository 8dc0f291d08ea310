"""`anbar model`: unpacks the small model beforehand."""

import os

import typer

from anbar.apps.interpreter import choose, inspect
from anbar.apps.model import ensure_default, models_dir


def model() -> None:
    """Unpack the small model, if that was not done yet, and print its directory."""
    interpreter = inspect(*choose(os.environ))
    path = ensure_default(interpreter, models_dir(os.environ), lambda text: typer.echo(text, err=True))
    typer.echo(str(path))
