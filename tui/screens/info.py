"""A page to read: help, or the figures in full."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Markdown

from localspec.tui.screens.dialog import Dialog


class InfoScreen(Dialog[None]):
    """Shows Markdown."""

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="frame") as frame:
            frame.border_title = self._title
            frame.border_subtitle = "escape goes back"
            yield Markdown(self._text)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
