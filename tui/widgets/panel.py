"""The figures of speculation, live, beside the transcript."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Digits, Label, Static

from localspec.tui.renderables import panel
from localspec.tui.renderables.panel import View

_DIGITS_HEIGHT = 5


class Panel(Vertical):
    """Draws a `View`; only text changes, so nothing flickers."""

    def __init__(self) -> None:
        super().__init__(id="panel")
        self._view = View()
        self._speed = Digits("0.0", id="speed")
        self._ratio = Static("", id="ratio")
        self._body = Static("", id="figures")

    def compose(self) -> ComposeResult:
        with Horizontal(id="speed-row"):
            yield self._speed
            yield Label("tok/s", id="unit")
        yield self._ratio
        yield self._body

    def show(self, view: View) -> None:
        """Draw the figures."""
        self._view = view
        if not self.display or not self.content_size.width:
            return
        self._speed.update(panel.speed(view))
        # Their sizes are fixed, so that figures cost no layout.
        self._ratio.update(panel.ratio(view), layout=False)
        room = self.content_size.height - _DIGITS_HEIGHT
        self._body.update(panel.body(view, self.content_size.width, room), layout=False)

    def on_resize(self) -> None:
        self.show(self._view)
