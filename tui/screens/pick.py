"""Choosing one of several names, or typing another."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from localspec.tui.engine import Choice
from localspec.tui.renderables.styles import MUTED
from localspec.tui.screens.dialog import Dialog


class PickScreen(Dialog[str]):
    """Gives a name.

    Args:
        title: what is chosen.
        choices: what there is.
        hint: what else may be typed; empty: nothing else.
    """

    def __init__(self, title: str, choices: Sequence[Choice], hint: str = "") -> None:
        super().__init__()
        self._title = title
        self._choices = choices
        self._hint = hint
        self._shown: list[Choice] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame") as frame:
            frame.border_title = self._title
            frame.border_subtitle = "enter takes it, escape goes back"
            yield Input(placeholder=self._hint or "type to search", compact=True)
            yield OptionList(compact=True)

    def on_mount(self) -> None:
        self._show("")
        self.query_one(Input).focus()

    @on(Input.Changed)
    def _search(self, event: Input.Changed) -> None:
        self._show(event.value)

    @on(Input.Submitted)
    def _entered(self) -> None:
        highlighted = self.query_one(OptionList).highlighted
        if highlighted is not None:
            self.dismiss(self._shown[highlighted].name)

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._shown[event.option_index].name)

    def on_key(self, event: events.Key) -> None:
        options = self.query_one(OptionList)
        if event.key in ("up", "down") and not options.has_focus:
            event.stop()
            if event.key == "up":
                options.action_cursor_up()
            else:
                options.action_cursor_down()

    def _show(self, search: str) -> None:
        typed = search.strip()
        # A whole name goes first, though longer ones have it in them.
        self._shown = sorted(
            (choice for choice in self._choices if typed.lower() in choice.name.lower()),
            key=lambda choice: choice.name != typed,
        )
        if self._hint and typed and typed not in (choice.name for choice in self._choices):
            self._shown.append(Choice(typed, "as it is typed"))
        options = self.query_one(OptionList)
        options.clear_options()
        for choice in self._shown:
            options.add_option(
                Option(Content.assemble((choice.name, "bold"), (f"  {choice.note}", MUTED)))
            )
        if self._shown:
            options.highlighted = 0
