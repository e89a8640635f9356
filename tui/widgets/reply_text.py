"""A reply's Markdown, whole or growing.

It is a row of parts: only the last one changes while text comes, the others rest; those far out of sight
are not displayed, and gaps stand for them.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownStream

from localspec.tui.segments import LONG, cut, definitions, parts
from localspec.tui.widgets.gap import Gap
from localspec.tui.widgets.part import Part


class ReplyText(Vertical):
    """Markdown in parts.

    Args:
        text: what is there at first.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._texts = parts(text)
        self._parts = [Part(part) for part in self._texts]
        self._stream: MarkdownStream | None = None
        self._ahead, self._behind = Gap(), Gap()

    def compose(self) -> ComposeResult:
        yield self._ahead
        yield from self._parts[:-1]
        yield self._behind
        yield self._parts[-1]

    def rest(self, nearest: float, farthest: float) -> None:
        """Let complete parts rest; in sight is what lies between two rows, counted from the end up."""
        below = self._parts[-1].outer_size.height
        behind = ahead = 0
        for part in reversed(self._parts[:-1]):
            part.rest()
            hidden_behind = 0 < part.rows < nearest - below
            hidden_ahead = part.rows > 0 and below > farthest
            part.display = not (hidden_behind or hidden_ahead)
            behind += part.rows * hidden_behind
            ahead += part.rows * hidden_ahead
            below += part.rows or part.outer_size.height
        self._ahead.fill(ahead)
        self._behind.fill(behind)

    def free(self) -> None:
        """The width has changed, so the heights will."""
        for part in self._parts:
            part.free()
        self._ahead.fill(0)
        self._behind.fill(0)

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
        before = len(self._texts[-1])
        self._texts[-1] += text
        at = cut(self._texts[-1]) if len(self._texts[-1]) > LONG else 0
        if at >= max(before, 1):
            # A block begins just here, so nothing of it was drawn yet.
            await self._stream.write(text[: at - before])
            await self._cut(at)
            return
        await self._stream.write(text)
        if at and len(self._texts[-1]) > 2 * LONG:
            await self._cut(at, again=True)

    async def finish(self) -> None:
        """No more comes: what was streamed is parsed once more, as a whole."""
        await self._end_stream()
        await self._parts[-1].update(self._texts[-1])
        if links := definitions(self.source):
            # References may stand before their definitions, and in other parts.
            for part, text in zip(self._parts, self._texts, strict=True):
                await part.update(f"{text}\n\n{links}")

    async def _cut(self, at: int, *, again: bool = False) -> None:
        """Go on in a new part; `again` draws this one without what lies behind the cut."""
        await self._end_stream()
        whole, rest = self._texts[-1][:at], self._texts[-1][at:]
        self._texts[-1:] = [whole, rest]
        following = Part(rest)
        with self.app.batch_update():
            if again:
                await self._parts[-1].update(whole)
            await self.mount(following)
            self.move_child(self._behind, before=following)
        self._parts.append(following)
        self.begin()

    async def _end_stream(self) -> None:
        if self._stream:
            await self._stream.stop()
            self._stream = None
