"""What the user does with messages that are there: edit, other replies, going on, other versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localspec.sessions import Message
from localspec.tui.widgets.assistant_message import AssistantMessage
from localspec.tui.widgets.message_view import MessageView

if TYPE_CHECKING:
    from localspec.tui.screens.chat import ChatScreen


class Revising:
    """Changes which branch of the conversation a chat screen shows.

    Args:
        screen: whose conversation it is.

    Attributes:
        edited: the message of the user's that is in the composer again; None: none is.
    """

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self.edited: Message | None = None

    def edit(self, message: Message) -> None:
        """Put a message of the user's into the composer; sending it begins a new branch."""
        screen = self._screen
        if screen.streaming.replying:
            screen.warn("Stop the reply first: escape does.")
            return
        self.edited = message
        screen.composer.prompt.put(message.text)
        screen.composer.editing(
            "editing: enter begins a new branch here, escape leaves it as it was"
        )
        screen.composer.prompt.focus()

    def edit_last(self) -> None:
        """Edit the user's last message."""
        mine = [message for message in self._screen.conversation.branch if message.role == "user"]
        if mine:
            self.edit(mine[-1])
        else:
            self._screen.warn("There is no message to edit.")

    def end_editing(self) -> None:
        """What is in the composer is an ordinary message again."""
        self.edited = None
        self._screen.composer.editing("")

    async def regenerate(self) -> None:
        """Another reply to the last message."""
        screen = self._screen
        head = screen.conversation.head
        if head is None:
            screen.warn("There is nothing to regenerate.")
        if head is None or not self._can_reply():
            return
        if head.role == "assistant":
            screen.conversation.go_before(head)
            await screen.transcript.views[-1].remove()
        await screen.streaming.reply()

    async def go_on(self) -> None:
        """Let the last reply go on."""
        screen = self._screen
        head = screen.conversation.head
        if head is None or head.role != "assistant":
            screen.warn("There is no reply to continue.")
            return
        if not self._can_reply():
            return
        view = screen.transcript.views[-1]
        assert isinstance(view, AssistantMessage)
        await screen.streaming.reply(view)

    async def asked(self, view: MessageView, what: str) -> None:
        """What is wanted of one message: `edit`, `regenerate`, or to `leave` it."""
        screen, message = self._screen, view.message
        if what == "leave":
            screen.composer.prompt.focus()
            screen.transcript.follow()
        elif view not in screen.transcript.views:
            # It was asked twice, and the first time has drawn another branch.
            return
        elif what == "edit":
            branch = screen.conversation.branch
            index = [other.id for other in branch].index(message.id)
            self.edit(branch[index - 1] if message.role == "assistant" else message)
        elif self._can_reply():
            # Another reply: to this message, or in this reply's place.
            while (head := screen.conversation.head) and head.id != message.id:
                screen.conversation.go_before(head)
            if message.role == "assistant":
                screen.conversation.go_before(message)
            await screen.show_branch()
            screen.composer.prompt.focus()
            await screen.streaming.reply()

    async def show_version(self, view: MessageView, step: int) -> None:
        """Show the branch with the next (1) or previous (-1) version of a message."""
        screen = self._screen
        if screen.streaming.replying:
            screen.warn("Stop the reply first: escape does.")
            return
        if view not in screen.transcript.views:
            return
        index = screen.transcript.views.index(view)
        if screen.conversation.show_version(view.message, step):
            await screen.show_branch()
            screen.transcript.views[index].focus()

    def _can_reply(self) -> bool:
        """Whether a reply may begin or go on; if not, the user is told why."""
        screen = self._screen
        if screen.streaming.replying:
            screen.warn("Stop the reply first: escape does.")
        elif screen.models.under_way:
            screen.warn("The model is being loaded; wait for it.")
        elif screen.loaded is None:
            screen.warn("No model is loaded; /model loads one.")
        else:
            return True
        return False
