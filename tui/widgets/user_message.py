"""What the user said: plain text, as it was typed."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from localspec.tui.renderables.styles import MUTED
from localspec.tui.widgets.message_view import MessageView


class UserMessage(MessageView):
    """The user's message."""

    def compose(self) -> ComposeResult:
        yield Static(
            Content.assemble(("you", "bold $text-primary"), (self.versions_note, MUTED)),
            classes="speaker",
        )
        yield Static(self.message.text, classes="said", markup=False)
