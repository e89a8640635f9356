"""A stretch of Markdown that, once it is complete, costs little in sight and nothing out of sight."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical

from localspec.tui.widgets.code import ChatMarkdown


class Part(Vertical):
    """Markdown in a frame of its own.

    For each change on a screen Textual lays out all its widgets again, and those whose container has
    another height in earnest. So the frame of a complete part keeps its height.

    Attributes:
        rows: the height that is kept; 0: it follows the text.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.markdown = ChatMarkdown(open_links=False)
        self.rows = 0
        self._text = text
        self._parsed = False

    def compose(self) -> ComposeResult:
        yield self.markdown

    async def on_mount(self) -> None:
        await self.update(self._text)

    async def update(self, text: str) -> None:
        """Parse a text that is complete, in place of what is there."""
        self._parsed = False
        self.free()
        await self.markdown.update(text)
        self._parsed = True

    def free(self) -> None:
        """Let the height follow the text."""
        self.rows = 0
        self.styles.height = None
        self.display = True

    def rest(self) -> None:
        """Keep the height; nothing will change."""
        if not self.rows and self._parsed and (width := self.content_size.width):
            # Not its size, which is that of the last layout.
            self.rows = self.get_content_height(self.container_size, self.screen.size, width)
            self.styles.height = self.rows
