"""The `localspec` command: what is common to its subcommands, and how they end.

Answers go to stdout, everything else to stderr. Exit codes: 0, 1 (it failed), 2 (wrong usage), 130
(interrupted). Heavy imports happen inside the subcommands.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from localspec.cli import (
    chat,
    compare,
    convert,
    doctor,
    generate,
    history,
    models,
    profile,
    serve,
    train,
    verify,
)
from localspec.cli.output import ReaderGone, write
from localspec.errors import LocalspecError

app = typer.Typer(
    name="localspec",
    help="Make a local language model answer faster without changing what it answers.",
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("chat", epilog=chat.EPILOG)(chat.chat)
app.command("generate")(generate.generate)
app.command("serve")(serve.serve)
app.command("convert")(convert.convert)
app.command("train")(train.train)
app.command("profile")(profile.profile)
app.command("compare")(compare.compare)
app.command("history")(history.history)
app.command("verify")(verify.verify)
app.command("doctor")(doctor.doctor)
app.add_typer(models.app, name="models")


@app.callback()
def localspec(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Make a local language model answer faster without changing what it answers."""
    if show_version:
        write(f"localspec {version('localspec')}")
    elif context.invoked_subcommand is None:
        write(context.get_help())
    else:
        return
    raise typer.Exit


def main() -> None:
    """Run the command line and exit."""
    _open_standard_streams()
    code = run(sys.argv[1:])
    if code:
        _discard_output()
    sys.exit(code)


def _open_standard_streams() -> None:
    """Else a file opened later gets the number of a closed one, and MLX takes 0 for failure."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == number
            setattr(sys, name, os.fdopen(opened, "w" if number else "r", closefd=False))
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]


def _discard_output() -> None:
    """Python flushes standard output once more when it ends, and must not fail then."""
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
        _complain(error.format_message().replace("Value error, ", ""))
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
    print("localspec: " + " ".join(message.split()), file=sys.stderr)
