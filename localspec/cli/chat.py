"""`localspec chat`: the terminal chat."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from localspec.errors import LocalspecError, UsageError
from localspec.tui.paths import config_path

EPILOG = f"Keys, colours and defaults are configured in {config_path()}."


def chat(
    prompt: Annotated[str | None, typer.Argument(help="Sent at once.")] = None,
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="A name, a folder, a GGUF file or a Hub id.")
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option("-d", "--drafter", help="auto, none, ngram, or a drafter's name or folder."),
    ] = None,
    system: Annotated[str | None, typer.Option("-s", "--system", help="A system prompt.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 takes the most likely token.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("-c", "--continue", help="Go on with the last conversation.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="Another configuration file.")] = None,
) -> None:
    """Chat in the terminal, with live figures of what drafting gives."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout and sys.stdout.isatty()):
        raise UsageError("chat needs a terminal; `localspec generate` works in pipes")

    from localspec.sessions import Sessions, default_path
    from localspec.tui import config as configuration
    from localspec.tui.app import ChatApp
    from localspec.tui.deferred import DeferredEngine
    from localspec.tui.engine import Engine
    from localspec.tui.screens.chat import Start

    read = configuration.read(config or config_path())
    settings = read.settings
    if temperature is not None:
        settings = settings.changed("temperature", str(temperature))
    notice = ""
    try:
        sessions = Sessions(default_path())
    except LocalspecError as error:
        if resume:
            raise
        sessions, notice = Sessions(None), f"{error}; conversations are not saved"
    last = sessions.find() if resume else []
    if resume and not last:
        raise LocalspecError("there is no conversation to go on with")
    start = Start(
        target=model or read.model,
        drafter=drafter or read.drafter,
        system=read.system if system is None else system,
        settings=settings,
        session=last[0].id if last else None,
        prompt=prompt or "",
        notice=notice,
    )

    def engine() -> Engine:
        from localspec.tui.local import LocalEngine

        return LocalEngine()

    app = ChatApp(DeferredEngine(engine), sessions, read, start)
    try:
        app.run()
    finally:
        sessions.close()
    # All is saved. Native libraries that were imported a moment ago, when one quits while a model is
    # loaded, can abort the process while the interpreter takes them down.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(app.return_code or 0)
