"""`localspec history`: whether your prompts are kept on this computer for `compare`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from localspec.cli.output import write


def history(
    action: Annotated[
        Literal["on", "off", "clear", "path"] | None,
        typer.Argument(help="What to do; left out: say whether it is on."),
    ] = None,
) -> None:
    """Keep your prompts on this computer (on), stop (off), delete them (clear), say where (path)."""
    from localspec import history as kept

    if action is None:
        write(f"the history is {'on' if kept.is_on() else 'off'}")
    elif action == "on":
        kept.turn_on()
        write(f"chats and endpoint requests are kept in {kept.path()}: prompts and settings alone")
    elif action == "off":
        kept.turn_off()
        write("nothing more is kept; `localspec history clear` deletes what is there")
    elif action == "clear":
        write("the history is deleted" if kept.clear() else "there is no history to delete")
    else:
        write(str(kept.path()))
