"""One message of the transcript, and what can be done with it while it has the focus."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.containers import Vertical
from textual.message import Message as Event

from localspec.sessions import Message
from localspec.tui.actions import MESSAGE, bindings
from localspec.tui.markdown import code_blocks


class MessageView(Vertical, can_focus=True):
    """A message.

    Args:
        message: what it shows.
        version: which of how many versions in its place it is, both from 1.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(MESSAGE)]

    class Asked(Event):
        """The user wants something done with the message: `edit`, `regenerate`, or `leave` it."""

        def __init__(self, view: MessageView, what: str) -> None:
            super().__init__()
            self.view = view
            self.what = what

    class VersionAsked(Event):
        """The user wants the next (1) or previous (-1) version."""

        def __init__(self, view: MessageView, step: int) -> None:
            super().__init__()
            self.view = view
            self.step = step

    class CopyAsked(Event):
        """The user wants this text on the clipboard."""

        def __init__(self, text: str, what: str) -> None:
            super().__init__()
            self.text = text
            self.what = what

    def __init__(self, message: Message, version: tuple[int, int] = (1, 1)) -> None:
        super().__init__()
        self.message = message
        self.version = version
        self._next_block = 0

    @property
    def versions_note(self) -> str:
        """`‹ 2/3 ›` where there are several."""
        at, of = self.version
        return f"  ‹ {at}/{of} ›" if of > 1 else ""

    def action_copy(self) -> None:
        self.post_message(self.CopyAsked(self.message.text, "message"))

    def action_copy_code(self) -> None:
        blocks = code_blocks(self.message.text)
        if not blocks:
            self.notify("There is no code in this message.", severity="warning")
            return
        index = self._next_block % len(blocks)
        self._next_block += 1
        self.post_message(self.CopyAsked(blocks[index], f"code block {index + 1} of {len(blocks)}"))

    def action_edit(self) -> None:
        self.post_message(self.Asked(self, "edit"))

    def action_regenerate(self) -> None:
        self.post_message(self.Asked(self, "regenerate"))

    def action_leave(self) -> None:
        self.post_message(self.Asked(self, "leave"))

    def action_version(self, step: int) -> None:
        self.post_message(self.VersionAsked(self, step))
