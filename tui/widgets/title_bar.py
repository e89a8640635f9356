"""The top line: the models, the conversation, and what goes on."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from localspec.tui.renderables.styles import MUTED

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class TitleBar(Widget):
    """One line."""

    models = reactive("")
    """Target and drafter."""
    title = reactive("")
    """The conversation's."""
    activity = reactive("")
    """What takes its time; empty: nothing does."""
    tick = reactive(0)
    """Turns the spinner."""

    def on_mount(self) -> None:
        self._timer = self.set_interval(1 / 8, self._turn, pause=True)

    def watch_activity(self, activity: str) -> None:
        if activity:
            self._timer.resume()
        else:
            self._timer.pause()

    def _turn(self) -> None:
        self.tick += 1

    def render(self) -> Content:
        left = Content.assemble(
            ("localspec", "bold $text-primary"), ("  ", ""), (self.models, MUTED)
        )
        if self.activity:
            spinner = _SPINNER[self.tick % len(_SPINNER)]
            right = Content.styled(f"{spinner} {self.activity}", "$text-warning")
        else:
            right = Content.styled(self.title, MUTED)
        room = self.size.width - left.cell_length - 2
        if room < 8:
            return right.truncate(self.size.width, ellipsis=True) if self.activity else left
        right = right.truncate(room, ellipsis=True)
        return left + " " * (self.size.width - left.cell_length - right.cell_length) + right
