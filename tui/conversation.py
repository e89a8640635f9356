"""The conversation on screen: one branch of a session's tree of messages. No Textual in here."""

from __future__ import annotations

from typing import Any

from localspec.sessions import Message, Sessions, StoredToken

_TITLE_LENGTH = 60


class Conversation:
    """The open session. It is written to the database from its first message on.

    Args:
        sessions: where conversations are kept.

    Attributes:
        id: of the session; None before the first message.
        title: the session's; empty before the first message.
        options: what is kept with the session (system prompt, settings, names).
    """

    def __init__(self, sessions: Sessions, options: dict[str, Any] | None = None) -> None:
        self._sessions = sessions
        self._messages: dict[int, Message] = {}
        self._head: int | None = None
        self.id: int | None = None
        self.title = ""
        self.options = options or {}

    @classmethod
    def open(cls, sessions: Sessions, session: int) -> Conversation | None:
        """A saved session, at the branch it was left at; None if it is gone."""
        found = sessions.get(session)
        if found is None:
            return None
        conversation = cls(sessions, found.options)
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
            self.title = self.title or _title(text)
            self.id = self._sessions.create(self.title, self.options)
        return self._add("user", text)

    def begin_reply(self) -> Message:
        """Add an empty reply, which then grows."""
        return self._add("assistant", "")

    def grow(self, message: Message, tokens: list[StoredToken]) -> None:
        """Save tokens of a reply; any thread."""
        self._sessions.grow(message.id, tokens)

    def finish(self, message: Message, reason: str, stats: dict[str, Any]) -> Message:
        """End a reply; gives it as it is now."""
        whole = self._sessions.finish(message.id, reason, stats)
        self._messages[message.id] = whole
        return whole

    def drop(self, message: Message) -> None:
        """Forget a reply that came to nothing."""
        self.go_before(message)
        del self._messages[message.id]
        self._sessions.remove(message.id)

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
        at = versions[index].id
        while later := [other.id for other in self._messages.values() if other.parent == at]:
            at = later[-1]
        self._move(at)
        return True

    def rename(self, title: str) -> None:
        self.title = title
        if self.id is not None:
            self._sessions.rename(self.id, title)

    def set_options(self, options: dict[str, Any]) -> None:
        self.options = options
        if self.id is not None:
            self._sessions.set_options(self.id, options)

    def _add(self, role: str, text: str) -> Message:
        assert self.id is not None, "a reply follows a message"
        message = self._sessions.add(self.id, self._head, role, text)
        self._messages[message.id] = message
        self._head = message.id
        return message

    def _move(self, head: int | None) -> None:
        self._head = head
        if self.id is not None:
            self._sessions.set_head(self.id, head)


def _title(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1].rstrip() + "…"
