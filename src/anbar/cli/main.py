"""The `anbar` command. Errors are one readable line; a stack trace only with ANBAR_DEBUG=1."""

import errno
import os
import sys
from typing import Annotated

import typer

from anbar import __version__
from anbar.cli.commands import Commands
from anbar.core.errors import AnbarError, ConfigError

EXIT_FAILURE = 1
EXIT_CONFIG = 2
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Standard output is a file on a disk that has no room."""


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"anbar {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="anbar",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def anbar(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Say the version and end."),
    ] = False,
) -> None:
    """A serving stack for vLLM whose KV cache can leave the GPU."""


def main() -> None:
    """Entry point: runs the command and turns errors into exit statuses."""
    try:
        app()
    except AnbarError as error:
        if os.environ.get("ANBAR_DEBUG") == "1":
            raise
        sys.stderr.write(f"anbar: {error}\n")
        sys.exit(EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_FAILURE)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        if os.environ.get("ANBAR_DEBUG") == "1":
            raise
        if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or what is left would be written at the end
            sys.stderr.write(f"anbar: standard output cannot be written: {error.strerror}\n")
            sys.exit(EXIT_FAILURE)
        text = f"anbar: internal error: {type(error).__name__}: {error}; ANBAR_DEBUG=1 shows where\n"
        sys.stderr.write(text)
        sys.exit(EXIT_INTERNAL)


if __name__ == "__main__":
    main()
