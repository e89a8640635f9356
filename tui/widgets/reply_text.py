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
        self._parts = [Part(part) for part in self._linked()]
        self._stream: MarkdownStream | None = None
        self._ahead, self._behind = Gap(), Gap()

    def compose(self) -> ComposeResult:
        yield self._ahead
        yield from self._parts[:-1]
        yield self._behind
        yield self._parts[-1]

    def rest(self, nearest: float, farthest: float) -> tuple[Part, float] | None:
        """Let complete parts rest; in sight is what lies between two rows, counted from the end up.

        Returns:
            The last part in sight that is not drawn yet, and the row it begins at; None: all are.
        """
        below: float = 0
        behind = ahead = 0
        found = None
        for part in reversed(self._parts):
            if self._stream and part is self._parts[-1]:
                below += part.outer_size.height
                continue
            part.rest()
            hidden_behind = 0 < part.rows < nearest - below
            hidden_ahead = part.rows > 0 and below > farthest
            part.display = not (hidden_behind or hidden_ahead)
            behind += part.rows * hidden_behind
            ahead += part.rows * hidden_ahead
            below += part.rows or part.outer_size.height
            if part.rows and part.display and not part.drawn and not found:
                found = part, below
        self._ahead.fill(ahead)
        self._behind.fill(behind)
        return found

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

    async def begin(self) -> None:
        """Text is about to come."""
        await self._parts[-1].draw()
        self._parts[-1].free()
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
        if definitions(self.source):
            for part, text in zip(self._parts, self._linked(), strict=True):
                if part.drawn:
                    await part.update(text)
                else:
                    part.replace(text)

    def _linked(self) -> list[str]:
        """The texts of the parts, as they are parsed once they are complete."""
        # References may stand before their definitions, and in other parts.
        links = definitions(self.source)
        return [f"{text}\n\n{links}" if links else text for text in self._texts]

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
        await self.begin()

    async def _end_stream(self) -> None:
        if self._stream:
            await self._stream.stop()
            self._stream = None
