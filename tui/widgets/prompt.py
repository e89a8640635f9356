"""Where the user types: a text area whose enter sends, and in which long pastes are chips."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import TextArea

from localspec.tui.actions import COMPOSER, bindings
from localspec.tui.widgets.completions import Completions

_CHIP = re.compile(r"\[pasted (\d+): \d+ (?:lines|characters)\]")
_LONG_LINES = 8
_LONG_CHARACTERS = 800
_OWN = {action.id for action in COMPOSER}


class Prompt(TextArea):
    """The text being written.

    Args:
        completions: shown above; moved and taken by keys in here.
        history: earlier prompts, the latest first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(COMPOSER)]

    class Sent(Message):
        """The user wants this text sent; pastes are whole again."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, completions: Completions, history: Callable[[], list[str]]) -> None:
        super().__init__(
            id="prompt",
            compact=True,
            soft_wrap=True,
            highlight_cursor_line=False,
            placeholder="Ask anything.  / for commands",
        )
        self._completions = completions
        self._history = history
        self._recalled: list[str] = []
        self._at = -1  # of the recalled prompts; -1: the user's own text
        self._pastes: dict[str, str] = {}
        self._sent: tuple[str, dict[str, str]] = "", {}

    def put(self, text: str) -> None:
        """Replace the text, cursor at its end."""
        self.text = text
        self.move_cursor(self.document.end)

    @property
    def whole_text(self) -> str:
        """The text with pastes in place of their chips."""
        return _CHIP.sub(lambda chip: self._pastes.get(chip[1], chip[0]), self.text)

    def get_line(self, line_index: int) -> Text:
        line = super().get_line(line_index)
        for chip in _CHIP.finditer(line.plain):
            line.stylize(Style(reverse=True), chip.start(), chip.end())
        return line

    async def _on_key(self, event: events.Key) -> None:
        bound = self.screen.active_bindings.get(event.key)
        if bound and bound.node is self and bound.binding.id in _OWN:
            # Here and now: when the app comes to it, what was typed meanwhile is in the text, too.
            event.prevent_default()
            event.stop()
            self._completions.follow(self.text)
            await self.run_action(bound.binding.action)
        elif event.key == "enter" and bound:
            # A text area takes enter for itself; here it may be bound to something else.
            event.prevent_default()
        elif event.character and unicodedata.category(event.character) == "Cf":
            # Joiners and the like, of which emoji are made, count as not printable.
            event.prevent_default()
            event.stop()
            self.replace(event.character, *self.selection)

    async def _on_paste(self, event: events.Paste) -> None:
        text = event.text.replace("\r\n", "\n").replace("\r", "\n")
        num_lines = text.count("\n") + 1
        event.prevent_default()
        event.stop()
        if num_lines > _LONG_LINES or len(text) > _LONG_CHARACTERS:
            number = str(len(self._pastes) + 1)
            self._pastes[number] = text
            size = f"{num_lines} lines" if num_lines > 1 else f"{len(text)} characters"
            text = f"[pasted {number}: {size}]"
        self.replace(text, *self.selection)

    def action_delete_left(self) -> None:
        row, column = self.cursor_location
        for chip in _CHIP.finditer(self.document.get_line(row)):
            # A chip goes as a whole, as the one thing that it looks like.
            if self.selection.is_empty and chip.end() == column:
                self.delete((row, chip.start()), (row, column))
                return
        super().action_delete_left()

    def action_send(self) -> None:
        if self._completions.open and self._completions.take(self):
            return
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        if before.endswith("\\"):
            self.replace("\n", (row, column - 1), (row, column))
            return
        text = self.whole_text
        if text.strip():
            self._sent = self.text, self._pastes
            self.empty()
            self.post_message(self.Sent(text))

    def take_back(self) -> None:
        """What was sent last could not be; it is there again, before what was typed since."""
        text, pastes = self._sent
        self._pastes = pastes | self._pastes
        self.put(f"{text}\n{self.text}" if self.text else text)

    def empty(self) -> None:
        """Begin afresh."""
        self._at, self._recalled = -1, []
        self._pastes = {}
        self.clear()

    def action_newline(self) -> None:
        self.replace("\n", *self.selection)

    def action_complete(self) -> None:
        if self._completions.open:
            self._completions.take(self)
        else:
            self.screen.focus_next()

    def action_older(self) -> None:
        if self._completions.open:
            self._completions.action_cursor_up()
        elif self._at >= 0 or not self.text:
            self._recall(1)
        else:
            self.action_cursor_up()

    def action_newer(self) -> None:
        if self._completions.open:
            self._completions.action_cursor_down()
        elif self._at >= 0:
            self._recall(-1)
        else:
            self.action_cursor_down()

    def _recall(self, step: int) -> None:
        if self._at < 0:
            self._recalled = self._history()
        if self._at >= 0 and self.text != self._recalled[self._at]:
            # It was changed, so it is the user's own text now.
            self._at = -1
            return
        self._at = min(self._at + step, len(self._recalled) - 1)
        self.put(self._recalled[self._at] if self._at >= 0 else "")
