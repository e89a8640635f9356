"""Writing a text: one line (a title), or more (the system prompt)."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Footer, Input, TextArea

from localspec.tui.actions import TEXT, bindings
from localspec.tui.screens.dialog import Dialog


class LineScreen(Dialog[str]):
    """Gives one line of text."""

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame small") as frame:
            frame.border_title = self._title
            frame.border_subtitle = "enter takes it, escape goes back"
            yield Input(self._text, compact=True)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())


class TextScreen(Dialog[str]):
    """Gives a text of several lines."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(TEXT)]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame") as frame:
            frame.border_title = self._title
            yield TextArea(self._text, compact=True, soft_wrap=True)
        yield Footer(compact=True, show_command_palette=False)

    def action_accept(self) -> None:
        self.dismiss(self.query_one(TextArea).text.strip())
