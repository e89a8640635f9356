"""What a slash command can become, above the composer. The composer keeps the focus."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import OptionList, TextArea
from textual.widgets.option_list import Option

from localspec.tui import commands
from localspec.tui.engine import Choice
from localspec.tui.renderables.styles import MUTED


class Completions(OptionList, can_focus=False):
    """Whole lines to choose from; not shown without any.

    Args:
        known: what commands take.
    """

    def __init__(self, known: commands.Choices) -> None:
        super().__init__(id="completions", compact=True)
        self._known = known
        self._text = ""
        self._choices: list[Choice] = []
        self.display = False

    @property
    def open(self) -> bool:
        return self.display

    def follow(self, text: str) -> None:
        """Offer what a text can become, unless it is the text that was followed last."""
        if text == self._text:
            return
        self._text = text
        choices = commands.completions(text, self._known)
        # A line that is complete needs no list, but its enter must run it.
        whole = [choice.name for choice in choices] == [text.strip()]
        self.show([] if whole else choices)

    def show(self, choices: Sequence[Choice]) -> None:
        """Offer these; none closes the list."""
        self._choices = list(choices)
        self.display = bool(choices)
        self.clear_options()
        room = max((len(choice.name) for choice in choices), default=0)
        for choice in choices:
            name = f" {choice.name:<{room}}  "
            self.add_option(Option(Content.assemble((name, "bold"), (choice.note, MUTED))))
        if choices:
            self.highlighted = 0

    def take(self, area: TextArea) -> bool:
        """Put the highlighted line into the text; False: it is there already."""
        if self.highlighted is None:
            return False
        line = self._choices[self.highlighted].name
        self.show([])
        if line == area.text.strip():
            return False
        area.text = line + " "
        area.move_cursor(area.document.end)
        return True
