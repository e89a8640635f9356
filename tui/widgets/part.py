"""A stretch of Markdown that, once it is complete, costs little in sight and nothing out of sight."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.geometry import Size

from localspec.tui.segments import guessed_rows
from localspec.tui.widgets.code import ChatMarkdown


class Part(Vertical):
    """Markdown in a frame of its own.

    For each change on a screen Textual lays out all its widgets again, and those whose container has
    another height in earnest. So the frame of a complete part keeps its height. Parsing makes a widget
    of each block, so a text that is there from the start is not parsed before it is to be seen.

    Attributes:
        rows: the height that is kept; 0: it follows the text.
        drawn: whether the text was parsed; until then the height is a guess.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.markdown = ChatMarkdown(open_links=False)
        self.rows = 0
        self.drawn = not text
        self._text = text
        self._parsed = not text

    def compose(self) -> ComposeResult:
        yield self.markdown

    async def draw(self) -> None:
        """Parse the text, unless that was done."""
        if not self.drawn:
            await self.update(self._text)

    async def update(self, text: str) -> None:
        """Parse a text that is complete, in place of what is there."""
        self._text = text
        self.drawn, self._parsed = True, False
        self.free()
        await self.markdown.update(text)
        self._parsed = True

    def replace(self, text: str) -> None:
        """Take another text before the first is parsed."""
        self._text = text

    def free(self) -> None:
        """Let the height follow the text."""
        self.rows = 0
        self.styles.height = None
        self.display = True

    def rest(self) -> None:
        """Keep the height; nothing will change."""
        if self.rows or (self.drawn and not self._parsed):
            return
        if width := self.content_size.width:
            # Not its size, which is that of the last layout.
            self.rows = self.get_content_height(self.container_size, self.screen.size, width)
            self.styles.height = self.rows

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        if not self.drawn:
            return guessed_rows(self._text, width)
        return super().get_content_height(container, viewport, width)
