"""The `localspec` command: what is common to its subcommands, and how they end.

Answers go to stdout, everything else to stderr. Exit codes: 0, 1 (it failed), 2 (wrong usage), 130
(interrupted). Heavy imports happen inside the subcommands.
"""

from __future__ import annotations

import os
import sys

import typer

from localspec.cli import convert, doctor, generate, models
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
app.command("convert")(convert.convert)
app.command("doctor")(doctor.doctor)
app.add_typer(models.app, name="models")


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run the command line; returns the exit code."""
    try:
        code = app(arguments, prog_name="localspec", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except ReaderGone:
        # Python flushes standard output once more when it ends, and must not fail then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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


def _complain(message: str) -> None:
    print("localspec: " + " ".join(message.split()), file=sys.stderr)
