"""Dialogs of the chat screen: what each is opened with, and what its result does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from localspec.errors import LocalspecError
from localspec.sessions import Sessions
from localspec.tui import desktop
from localspec.tui import help as pages
from localspec.tui.config import Config
from localspec.tui.engine import Engine
from localspec.tui.screens.compare import CompareScreen
from localspec.tui.screens.contest import ContestScreen
from localspec.tui.screens.info import InfoScreen
from localspec.tui.screens.pick import PickScreen
from localspec.tui.screens.sessions import SessionsScreen
from localspec.tui.screens.settings import SettingsScreen
from localspec.tui.screens.text import LineScreen, TextScreen
from localspec.tui.settings import Settings

if TYPE_CHECKING:
    from localspec.tui.screens.chat import ChatScreen


def sessions(screen: ChatScreen, saved: Sessions, search: str) -> None:
    """Search, resume, rename, delete."""

    async def opened(session: int | None) -> None:
        if session is not None and session != screen.conversation.id:
            await screen.open_session(session)
        else:
            # It may have another title now.
            screen.conversation.read_title()
            screen.update_title()

    if screen.streaming.replying:
        screen.warn("Stop the reply first: escape does.")
        return
    screen.app.push_screen(SessionsScreen(saved, search, screen.conversation.id), opened)


def rename(screen: ChatScreen) -> None:
    """Give the conversation another title."""

    def renamed(title: str | None) -> None:
        if title:
            screen.rename(title)

    screen.app.push_screen(LineScreen("Title", screen.conversation.title), renamed)


def model(screen: ChatScreen) -> None:
    """Load another model."""

    def picked(name: str | None) -> None:
        if name:
            screen.models.start(name, screen.drafter)

    hint = "type to search; or a folder, a .gguf file, a Hub id"
    screen.app.push_screen(PickScreen("Model", screen.models.targets, hint), picked)


def drafter(screen: ChatScreen) -> None:
    """Take another drafter, or none."""

    def picked(name: str | None) -> None:
        if name:
            screen.models.start(screen.target, name)

    hint = "type to search; or a folder, a Hub id"
    screen.app.push_screen(PickScreen("Drafter", screen.models.drafters, hint), picked)


def settings(screen: ChatScreen) -> None:
    """Temperature and the rest."""

    def taken(chosen: Settings | None) -> None:
        if chosen:
            screen.set_settings(chosen)

    screen.app.push_screen(SettingsScreen(screen.settings), taken)


def system(screen: ChatScreen) -> None:
    """Edit the system prompt."""

    def taken(text: str | None) -> None:
        if text is not None:
            screen.set_system(text)

    screen.app.push_screen(TextScreen("System prompt", screen.system), taken)


def help(screen: ChatScreen, config: Config) -> None:
    """Keys, commands, and what each figure means."""
    screen.app.push_screen(InfoScreen("Help", pages.page(config.keys, config.path)))


def stats(screen: ChatScreen) -> None:
    """The figures of the last reply, in full."""
    replies = [message for message in screen.conversation.branch if message.role == "assistant"]
    page = pages.figures_page(replies[-1].stats if replies else {})
    screen.app.push_screen(InfoScreen("Figures of the last reply", page))


def compare(screen: ChatScreen, engine: Engine, names: list[str]) -> None:
    """Race plain decoding against the drafter on the last prompt; or, of drafters named, a table."""
    loaded = screen.loaded
    history = screen.conversation.history(screen.system)
    while history and history[-1]["role"] == "assistant":
        history.pop()
    if loaded is None and not screen.models.under_way:
        screen.warn("No model is loaded; /model loads one.")
    elif loaded is None or screen.streaming.replying:
        screen.warn("The engine is busy; wait, or stop the reply.")
    elif not names and not loaded.drafts:
        screen.warn("There is no drafter to race; /drafter takes one.")
    elif not history or history[-1]["role"] != "user":
        screen.warn("There is no prompt yet; send one first.")
    else:
        screen.streaming.stop_measuring()
        dialog: CompareScreen | ContestScreen
        if names:
            dialog = ContestScreen(engine, loaded, names, history, screen.settings)
        else:
            dialog = CompareScreen(engine, loaded, history, screen.settings)
        screen.app.push_screen(dialog, screen.streaming.measured)


def editor(screen: ChatScreen) -> None:
    """Write the message in $EDITOR."""
    prompt = screen.composer.prompt
    try:
        with screen.app.suspend():
            text = desktop.edit(prompt.whole_text)
    except SuspendNotSupported:
        screen.warn("This terminal cannot be left to an editor.")
    except LocalspecError as error:
        screen.warn(str(error))
    else:
        prompt.put(text)
