"""Typed slash commands, carried out on the chat screen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from localspec.errors import UsageError
from localspec.tui import commands

if TYPE_CHECKING:
    from localspec.tui.screens.chat import ChatScreen


async def run(screen: ChatScreen, text: str) -> bool:
    """Carry out a command; False: the text is none."""
    parsed = commands.parse(text)
    if parsed is None:
        return False
    command, argument = parsed
    if command is None:
        screen.warn(f"There is no command {text.split()[0]}; /help lists them.")
        screen.composer.prompt.take_back()
        return True
    done = _COMMANDS[command.name](screen, argument)
    if done is not None:
        await done
    return True


def _model(screen: ChatScreen, name: str) -> None:
    if name:
        screen.models.start(name, screen.drafter)
    else:
        screen.action_model()


def _drafter(screen: ChatScreen, name: str) -> None:
    if name:
        screen.models.start(screen.target, name)
    else:
        screen.action_drafter()


def _system(screen: ChatScreen, text: str) -> None:
    if text:
        screen.set_system(text)
    else:
        screen.action_system()


def _set(screen: ChatScreen, argument: str) -> None:
    name, _, value = argument.partition(" ")
    if not name:
        screen.action_settings()
        return
    try:
        settings = screen.settings.changed(name, value)
    except UsageError as error:
        screen.warn(str(error))
        return
    screen.set_settings(settings)
    screen.notify(f"{name} is {settings.shown(name.replace('-', '_'))}.")


def _save(screen: ChatScreen, title: str) -> None:
    if title:
        screen.rename(title)
        screen.notify(f"It is called “{title}” now.", markup=False)
    else:
        screen.action_rename()


def _copy(screen: ChatScreen, what: str) -> None:
    if what == "code":
        screen.action_copy_code()
    else:
        screen.action_copy_reply()


def _thinking(screen: ChatScreen, state: str) -> None:
    if state and not screen.has_no_thinking():
        _set(screen, f"thinking {state}")
    elif not state:
        screen.action_thinking()


def _theme(screen: ChatScreen, name: str) -> None:
    if not name:
        screen.app.search_themes()
    elif name in screen.app.available_themes:
        screen.app.theme = name
    else:
        screen.warn(f"There is no theme '{name}'; /theme lists them.")


_COMMANDS: dict[str, Callable[[ChatScreen, str], Awaitable[None] | None]] = {
    "help": lambda screen, _: screen.action_help(),
    "model": _model,
    "drafter": _drafter,
    "system": _system,
    "set": _set,
    "stats": lambda screen, _: screen.action_stats(),
    "compare": lambda screen, names: screen.action_compare(names),
    "save": _save,
    "sessions": lambda screen, search: screen.action_sessions(search),
    "clear": lambda screen, _: screen.action_new(),
    "regenerate": lambda screen, _: screen.action_regenerate(),
    "continue": lambda screen, _: screen.action_continue(),
    "edit": lambda screen, _: screen.action_edit_last(),
    "copy": _copy,
    "export": lambda screen, file: screen.action_export(file),
    "thinking": _thinking,
    "theme": _theme,
    "exit": lambda screen, _: screen.app.exit(),
}

assert set(_COMMANDS) == {command.name for command in commands.COMMANDS}
