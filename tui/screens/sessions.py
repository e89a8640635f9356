"""Saved conversations: searched, resumed, renamed, deleted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from localspec.errors import LocalspecError
from localspec.sessions import Message, Session, Sessions
from localspec.tui.actions import SESSIONS, bindings
from localspec.tui.renderables.styles import MUTED
from localspec.tui.screens.dialog import Dialog
from localspec.tui.screens.text import LineScreen

_PREVIEWED = 12


class SessionsScreen(Dialog[int]):
    """Gives the id of the session to open.

    Args:
        sessions: where they are.
        search: what to look for at first.
        open_session: the one that is open; it cannot be deleted.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SESSIONS)]

    def __init__(
        self, sessions: Sessions, search: str = "", open_session: int | None = None
    ) -> None:
        super().__init__()
        self._sessions = sessions
        self._search_text = search
        self._open = open_session
        self._shown: list[Session] = []
        self._doomed: int | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame wide") as frame:
            frame.border_title = "Sessions"
            yield Input(self._search_text, placeholder="search titles and messages", compact=True)
            with Horizontal():
                yield OptionList(id="session-list", compact=True)
                with VerticalScroll(id="preview"):
                    yield Static("", markup=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self._refresh()
        self.query_one(Input).focus()

    @on(Input.Changed)
    def _searched(self) -> None:
        self._refresh()

    @on(Input.Submitted)
    def _open_highlighted(self) -> None:
        if session := self._highlighted():
            self.dismiss(session.id)

    @on(OptionList.OptionSelected)
    def _open_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._shown[event.option_index].id)

    @on(OptionList.OptionHighlighted)
    def _preview(self) -> None:
        self._doomed = None
        session = self._highlighted()
        messages: list[Message] = []
        if session:
            with self._told():
                messages = self._sessions.messages(session.id)[-_PREVIEWED:]
        parts: list[Content] = []
        for message in messages:
            mine = message.role == "user"
            name = ("you", "bold $text-primary") if mine else ("reply", "bold $text-success")
            parts.append(Content.assemble(name, "\n", message.text.strip(), "\n"))
        self.query_one("#preview Static", Static).update(Content("\n").join(parts))

    def action_up(self) -> None:
        self.query_one(OptionList).action_cursor_up()

    def action_down(self) -> None:
        self.query_one(OptionList).action_cursor_down()

    def action_rename(self) -> None:
        session = self._highlighted()
        if not session:
            return

        def rename(title: str | None) -> None:
            if title:
                with self._told():
                    self._sessions.rename(session.id, title)
                self._refresh()

        self.app.push_screen(LineScreen("Title", session.title), rename)

    def action_delete(self) -> None:
        session = self._highlighted()
        if not session:
            return
        if session.id == self._open:
            self.notify("This conversation is open.", severity="warning")
        elif self._doomed != session.id:
            self._doomed = session.id
            self.notify(f"Once more deletes “{session.title}” for good.", severity="warning")
        else:
            with self._told():
                self._sessions.delete(session.id)
            self._refresh()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """A database that fails is a notice."""
        try:
            yield
        except LocalspecError as error:
            self.notify(str(error), severity="error", markup=False)

    def _highlighted(self) -> Session | None:
        index = self.query_one(OptionList).highlighted
        return self._shown[index] if index is not None and index < len(self._shown) else None

    def _refresh(self) -> None:
        options = self.query_one(OptionList)
        before = options.highlighted or 0
        with self._told():
            self._shown = self._sessions.find(self.query_one(Input).value.strip())
        options.clear_options()
        for session in self._shown:
            options.add_option(Option(_entry(session, opened=session.id == self._open)))
        if self._shown:
            options.highlighted = min(before, len(self._shown) - 1)
        else:
            self._preview()


def _entry(session: Session, *, opened: bool) -> Content:
    when = time.strftime("%d %b %H:%M", time.localtime(session.updated))
    target = str(session.options.get("target", "")).rpartition("/")[2]
    note = f"{when} · {session.num_messages} messages · {target}"
    return Content.assemble(
        ("● " if opened else "  ", "$text-success"),
        (session.title, "bold"),
        "\n",
        (f"  {note}", MUTED),
    )
