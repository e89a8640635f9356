"""Empty rows in place of what is too far out of sight to be laid out."""

from __future__ import annotations

from textual.widget import Widget


class Gap(Widget):
    """Some empty rows; none at first."""

    def on_mount(self) -> None:
        self.display = False

    def fill(self, rows: int) -> None:
        """Be so many rows high."""
        self.display = rows > 0
        self.styles.height = rows
