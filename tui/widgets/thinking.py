"""What the model thinks before it answers: folded and dimmed."""

from __future__ import annotations

from textual.widgets import Collapsible, Static


class Thinking(Collapsible):
    """Grows while the model thinks; its title says that it does, folded or not."""

    def __init__(self) -> None:
        self._text = ""
        self._contents = Static("", classes="thoughts", markup=False)
        super().__init__(self._contents, title="thinking…", collapsed=True)
        self.add_class("-empty")

    def write(self, text: str) -> None:
        """Add text."""
        self._text += text
        self.remove_class("-empty")
        self.title = f"thinking… {self._num_words()}"
        if not self.collapsed:
            self._contents.update(self._text)

    def end(self) -> None:
        """The answer has begun, or the reply has ended."""
        if self._text:
            self.title = f"thoughts, {self._num_words()}"

    def watch_collapsed(self, collapsed: bool) -> None:
        if not collapsed:
            self._contents.update(self._text)

    def _num_words(self) -> str:
        number = len(self._text.split())
        return f"{number} word{'' if number == 1 else 's'}"
