"""The panel folded to one line."""

from __future__ import annotations

from textual.widgets import Static

from localspec.tui.renderables import panel
from localspec.tui.renderables.panel import View


class StatusLine(Static):
    """As many figures as fit."""

    def __init__(self) -> None:
        super().__init__("", id="status")
        self._view = View()

    def show(self, view: View) -> None:
        """Draw the figures."""
        self._view = view
        if self.display and self.content_size.width:
            self.update(panel.line(view, self.content_size.width), layout=False)

    def on_resize(self) -> None:
        self.show(self._view)
