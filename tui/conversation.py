"""The conversation on screen: one branch of a session's tree of messages. No Textual in here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from localspec.errors import LocalspecError
from localspec.sessions import Message, Sessions, StoredToken

_TITLE_LENGTH = 60
T = TypeVar("T")
Unsaved = Callable[[str], None]


class Conversation:
    """The open session. It is written to the database from its first message on.

    What cannot be written goes on in memory alone, until the conversation is left.

    Args:
        sessions: where conversations are kept.
        unsaved: told once, in words, why the conversation is no longer saved; from any thread.

    Attributes:
        id: of the session; None before the first message.
        title: the session's; empty before the first message.
        options: what is kept with the session (system prompt, settings, names).
    """

    def __init__(
        self,
        sessions: Sessions,
        options: dict[str, Any] | None = None,
        *,
        unsaved: Unsaved = lambda words: None,
    ) -> None:
        self._sessions = sessions
        self._unsaved = unsaved
        self._is_saved = True
        self._growing: dict[int, list[StoredToken]] = {}
        self._messages: dict[int, Message] = {}
        self._head: int | None = None
        self.id: int | None = None
        self.title = ""
        self.options = options or {}

    @classmethod
    def open(
        cls, sessions: Sessions, session: int, *, unsaved: Unsaved = lambda words: None
    ) -> Conversation | None:
        """A saved session, at the branch it was left at; None if it is gone.

        Raises:
            LocalspecError: it cannot be read.
        """
        found = sessions.get(session)
        if found is None:
            return None
        conversation = cls(sessions, found.options, unsaved=unsaved)
        conversation.id, conversation.title = session, found.title
        conversation._messages = {message.id: message for message in sessions.messages(session)}
        conversation._head = found.head
        return conversation

    @property
    def branch(self) -> list[Message]:
        """The messages shown, from the first to the head."""
        found = []
        at = self._head
        while at is not None:
            message = self._messages[at]
            found.append(message)
            at = message.parent
        return found[::-1]

    @property
    def head(self) -> Message | None:
        """The last message shown."""
        return self._messages[self._head] if self._head is not None else None

    def history(self, system: str = "") -> list[dict[str, str]]:
        """The branch as an engine takes it: roles in turns, a system prompt first if there is one."""
        messages = [{"role": "system", "content": system}] if system else []
        for message in self.branch:
            if messages and messages[-1]["role"] == message.role:
                # A message whose reply failed is followed by another; templates want turns.
                messages[-1]["content"] += "\n\n" + message.text
                continue
            entry = {"role": message.role, "content": message.text}
            if message.thinking:
                entry["thinking"] = message.thinking
            messages.append(entry)
        return messages

    def say(self, text: str) -> Message:
        """Add the user's message."""
        if self.id is None:
            title = self.title = self.title or _title(text)
            self.id = self._stored(lambda: self._sessions.create(title, self.options))
        return self._add("user", text)

    def begin_reply(self) -> Message:
        """Add an empty reply, which then grows."""
        return self._add("assistant", "")

    def resume_reply(self, message: Message) -> None:
        """A reply that had ended will grow again."""
        self._stored(lambda: self._sessions.resume(message.id))

    def grow(self, message: Message, tokens: list[StoredToken]) -> None:
        """Save tokens of a reply; any thread."""
        self._growing.setdefault(message.id, []).extend(tokens)
        self._stored(lambda: self._sessions.grow(message.id, tokens))

    def finish(self, message: Message, reason: str, stats: dict[str, Any]) -> Message:
        """End a reply; gives it as it is now."""
        whole = message.grown(self._growing.pop(message.id, []), reason, stats)
        self._stored(lambda: self._sessions.finish(message.id, reason, stats))
        self._messages[message.id] = whole
        return whole

    def drop(self, message: Message) -> None:
        """Forget a reply that came to nothing; another version of it, the latest, is the head again."""
        del self._messages[message.id]
        others = self.versions(message)
        self._move(self._end(others[-1].id) if others else message.parent)
        self._stored(lambda: self._sessions.remove(message.id))

    def go_before(self, message: Message) -> None:
        """Make a message's parent the head, so that what comes next is a new branch."""
        self._move(message.parent)

    def versions(self, message: Message) -> list[Message]:
        """The message and those that stand in its place in other branches, the oldest first."""
        return [other for other in self._messages.values() if other.parent == message.parent]

    def show_version(self, message: Message, step: int) -> bool:
        """Show the branch with the next (1) or previous (-1) version of a message, to its latest end."""
        versions = self.versions(message)
        index = [other.id for other in versions].index(message.id) + step
        if not 0 <= index < len(versions):
            return False
        self._move(self._end(versions[index].id))
        return True

    def rename(self, title: str) -> None:
        self.title = title
        if (here := self.id) is not None:
            self._stored(lambda: self._sessions.rename(here, title))

    def read_title(self) -> None:
        """Take the title that the session has been given elsewhere."""
        if (here := self.id) is not None and (
            found := self._stored(lambda: self._sessions.get(here))
        ):
            self.title = found.title

    def set_options(self, options: dict[str, Any]) -> None:
        self.options = options
        if (here := self.id) is not None:
            self._stored(lambda: self._sessions.set_options(here, options))

    def _end(self, at: int) -> int:
        """The latest end of the branches through a message."""
        while later := [other.id for other in self._messages.values() if other.parent == at]:
            at = later[-1]
        return at

    def _add(self, role: str, text: str) -> Message:
        here, parent = self.id, self._head
        message = None
        if here is not None:
            message = self._stored(lambda: self._sessions.add(here, parent, role, text))
        if message is None:
            # Below all numbers of messages that are saved.
            message = Message(min([0, *self._messages]) - 1, parent, role, text)
        self._messages[message.id] = message
        self._head = message.id
        return message

    def _move(self, head: int | None) -> None:
        self._head = head
        if (here := self.id) is not None:
            self._stored(lambda: self._sessions.set_head(here, head))

    def _stored(self, use: Callable[[], T]) -> T | None:
        """What the database gives; once it has failed, it is asked no more."""
        if not self._is_saved:
            return None
        try:
            return use()
        except LocalspecError as error:
            self._is_saved = False
            self._unsaved(f"{error}; it goes on unsaved")
            return None


def _title(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1].rstrip() + "…"
