"""The one way to standard output, which may be a pipe whose reader has gone."""

from __future__ import annotations

import sys


class ReaderGone(Exception):
    """Nobody reads standard output any more (`| head -1`), which is no failure."""


def write(text: str, *, end: str = "\n") -> None:
    """Print text at once.

    Raises:
        ReaderGone: the pipe is closed. (Typer would turn a BrokenPipeError into exit code 1.)
    """
    try:
        sys.stdout.write(text + end)
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None
