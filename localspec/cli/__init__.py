"""The `localspec` command: what is common to its subcommands, and how they end.

Answers go to stdout, everything else to stderr. Exit codes: 0, 1 (it failed), 2 (wrong usage), 130
(interrupted). Heavy imports happen inside the subcommands.
"""

from __future__ import annotations

import os
import sys

import typer

from localspec.cli import convert, doctor, generate, models, serve
from localspec.cli.output import ReaderGone
from localspec.errors import LocalspecError

app = typer.Typer(
    name="localspec",
    help="Make a local language model answer faster without changing what it answers.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("generate")(generate.generate)
app.command("serve")(serve.serve)
app.command("convert")(convert.convert)
app.command("doctor")(doctor.doctor)
app.add_typer(models.app, name="models")


def main() -> None:
    """Run the command line and exit."""
    _open_standard_streams()
    code = run(sys.argv[1:])
    if code:
        _discard_output()
    sys.exit(code)


def _open_standard_streams() -> None:
    """Else a file opened later gets the number of a closed one, and MLX takes 0 for failure."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is not None:
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]


def _discard_output() -> None:
    """Python flushes standard output once more when it ends, and must not fail then."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def run(arguments: list[str]) -> int:
    """Run the command line; returns the exit code."""
    try:
        code = app(arguments, prog_name="localspec", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except ReaderGone:
        _discard_output()
        return 0
    except KeyboardInterrupt:
        return 130
    except typer.TyperException as error:
        _complain(error.format_message())
        return error.exit_code
    except LocalspecError as error:
        _complain(str(error))
        return error.exit_code
    except typer.Abort:
        return 130
    except OSError as error:
        _complain(f"{error.filename or 'writing'}: {error.strerror or error}")
        return 1


def _complain(message: str) -> None:
    if sys.stderr is not None:
        print("localspec: " + " ".join(message.split()), file=sys.stderr)
