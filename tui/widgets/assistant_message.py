"""A reply: thinking, Markdown or coloured tokens, and how it ended. All text comes through `write`."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.content import Content
from textual.reactive import var
from textual.widgets import Static

from localspec.sessions import Message, StoredToken
from localspec.tui.renderables.styles import MUTED
from localspec.tui.widgets.message_view import MessageView
from localspec.tui.widgets.origin_text import OriginText
from localspec.tui.widgets.reply_text import ReplyText
from localspec.tui.widgets.thinking import Thinking

_ENDINGS = {
    "cancelled": "■ stopped",
    "interrupted": "■ cut off when the program ended; continue takes it up",
    "length": "■ reached the limit of tokens",
}


class AssistantMessage(MessageView):
    """A reply, whole or growing.

    Args:
        message: what is there of it.
        version: as for `MessageView`.
        speaker: the target's name.
        origins: whether tokens are coloured by origin.
    """

    origins = var(False)
    """Whether tokens are coloured by origin, instead of Markdown."""

    def __init__(
        self,
        message: Message,
        version: tuple[int, int] = (1, 1),
        *,
        speaker: str,
        origins: bool = False,
    ) -> None:
        super().__init__(message, version)
        self._speaker = speaker
        self._tokens: list[StoredToken] = list(message.tokens)
        self._num_streamed = 0
        self._growing = False
        self._header = Static(self._head(), classes="speaker")
        self._thinking = Thinking()
        self.said = ReplyText(message.text)
        self._colours = OriginText()
        self._note = Static("", classes="note", markup=False)
        self.set_reactive(AssistantMessage.origins, origins)

    def compose(self) -> ComposeResult:
        yield self._header
        yield self._thinking
        yield self.said
        yield self._colours
        yield self._note

    def on_mount(self) -> None:
        self._num_streamed = len(self._tokens)
        if self.message.thinking:
            self._thinking.write(self.message.thinking)
            self._thinking.end()
        self._show_ending(self.message.reason)
        self._lay_out()
        if self.origins:
            self._colours.show(self._tokens)

    async def begin(self) -> None:
        """Text is about to come."""
        self._note.display = False
        self._growing = True
        await self.said.begin()

    @property
    def source(self) -> str:
        """The Markdown so far."""
        return self.said.source

    async def write(self, tokens: Sequence[StoredToken]) -> None:
        """Add tokens; the only way for text into a reply."""
        self._tokens += tokens
        thought = "".join(text for text, _, thinking in tokens if thinking)
        if thought:
            self._thinking.write(thought)
        if self.origins:
            self._colours.write(tokens)
        else:
            await self._catch_up()

    async def finish(self, message: Message) -> None:
        """The reply has ended: the Markdown is parsed once more."""
        self.message = message
        self._thinking.end()
        await self._catch_up()
        self._growing = False
        await self.said.finish()
        self._header.update(self._head())
        self._show_ending(message.reason)

    def fail(self, words: str) -> None:
        """Say in place what went wrong."""
        self._note.update(f"✗ {words}")
        self._note.add_class("-error")
        self._note.display = True

    async def watch_origins(self, origins: bool) -> None:
        self._lay_out()
        if origins:
            self._colours.show(self._tokens)
        elif self._growing:
            await self._catch_up()

    def _lay_out(self) -> None:
        self.said.display = not self.origins
        self._colours.display = self.origins
        self.set_class(self.origins, "-origins")

    async def _catch_up(self) -> None:
        """Stream what the Markdown has not got yet."""
        new = self._tokens[self._num_streamed :]
        self._num_streamed = len(self._tokens)
        said = "".join(text for text, _, thinking in new if not thinking)
        if said:
            self._thinking.end()
            await self.said.write(said)

    def _head(self) -> Content:
        stats = self.message.stats
        figures = ""
        if number := stats.get("generated_tokens"):
            figures = (
                f"  {number} token{'' if number == 1 else 's'} · {stats['tokens_per_second']:.1f} tok/s"
                f" · accepted length {stats['accepted_length']:.2f}"
            )
        return Content.assemble(
            (self._speaker, "bold $text-success"), (self.versions_note + figures, MUTED)
        )

    def _show_ending(self, reason: str | None) -> None:
        ending = _ENDINGS.get(reason or "", "")
        self._note.update(ending)
        self._note.display = bool(ending)
