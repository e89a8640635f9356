"""A stretch of Markdown that, once it is complete, costs little in sight and nothing out of sight."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Markdown


class Part(Vertical):
    """Markdown in a frame of its own.

    For each change on a screen Textual lays out all its widgets again, and those whose container has
    another height in earnest. So the frame of a complete part keeps its height, and out of sight its
    Markdown is not displayed.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.markdown = Markdown(open_links=False)
        self._text = text
        self._parsed = False
        self._rests = False

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
        self._rests = False
        self.styles.height = None
        self.markdown.display = True

    def rest(self, *, in_sight: bool) -> None:
        """Keep the height; nothing will change."""
        width = self.content_size.width
        if not self._rests and self._parsed and width:
            self._rests = True
            # Not its size, which is that of the last layout.
            self.styles.height = self.get_content_height(
                self.container_size, self.screen.size, width
            )
        if self._rests and self.markdown.display != in_sight:
            self.markdown.display = in_sight
