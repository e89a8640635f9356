"""A reply's Markdown, whole or growing.

It is a row of parts: only the last one changes while text comes, the others rest.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownStream

from localspec.tui.segments import LONG, cut, definitions, parts
from localspec.tui.widgets.part import Part


class ReplyText(Vertical):
    """Markdown in parts.

    Args:
        text: what is there at first.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._parts = [Part(part) for part in parts(text)]
        self._texts = parts(text)
        self._stream: MarkdownStream | None = None

    def compose(self) -> ComposeResult:
        yield from self._parts

    def rest(self, top: int, bottom: int) -> None:
        """Let complete parts rest; in sight is what lies between two rows of the screen."""
        for part in self._parts[:-1]:
            region = part.region
            part.rest(in_sight=region.bottom >= top and region.y <= bottom)

    def free(self) -> None:
        """The width has changed, so the heights will."""
        for part in self._parts:
            part.free()

    @property
    def source(self) -> str:
        """The text."""
        return "".join(self._texts)

    def begin(self) -> None:
        """Text is about to come."""
        self._stream = Markdown.get_stream(self._parts[-1].markdown)

    async def write(self, text: str) -> None:
        """Add text."""
        # A burst is cut as the same text in pieces would be.
        for start in range(0, len(text), LONG):
            await self._add(text[start : start + LONG])

    async def _add(self, text: str) -> None:
        assert self._stream is not None
        self._texts[-1] += text
        await self._stream.write(text)
        if len(self._texts[-1]) > LONG and (at := cut(self._texts[-1])):
            await self._cut(at)

    async def finish(self) -> None:
        """No more comes: what was streamed is parsed once more, as a whole."""
        await self._end_stream()
        await self._parts[-1].update(self._texts[-1])
        if links := definitions(self.source):
            # References may stand before their definitions, and in other parts.
            for part, text in zip(self._parts, self._texts, strict=True):
                await part.update(f"{text}\n\n{links}")

    async def _cut(self, at: int) -> None:
        """Go on in a new part."""
        await self._end_stream()
        whole, rest = self._texts[-1][:at], self._texts[-1][at:]
        self._texts[-1:] = [whole, rest]
        following = Part(rest)
        with self.app.batch_update():
            await self._parts[-1].update(whole)
            await self.mount(following)
        self._parts.append(following)
        self.begin()

    async def _end_stream(self) -> None:
        if self._stream:
            await self._stream.stop()
            self._stream = None
