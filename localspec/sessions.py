"""Saved conversations in SQLite: trees of messages that grow token by token.

A reply under way is a row a token, so that a process that dies loses at most the token being written;
when the reply ends, or the session is opened again, the rows become one message. Plain values in and
out; safe from any thread. Knows nothing of models or screens.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from localspec.errors import LocalspecError, reason
from localspec.folders import data_dir

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    id INTEGER PRIMARY KEY, title TEXT NOT NULL, head INTEGER, options TEXT NOT NULL,
    created REAL NOT NULL, updated REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    parent INTEGER REFERENCES messages(id) ON DELETE CASCADE,
    role TEXT NOT NULL, text TEXT NOT NULL, thinking TEXT NOT NULL, tokens TEXT NOT NULL,
    reason TEXT, stats TEXT NOT NULL, created REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS messages_of_session ON messages(session);
CREATE TABLE IF NOT EXISTS growing (
    message INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE,
    text TEXT NOT NULL, origin TEXT NOT NULL, thinking INTEGER NOT NULL
);
"""

_LOCKED_S = 3.0
"""How long another process may keep the database to itself; the screen stands still meanwhile."""

_DELETED = "the session cannot be saved: it was deleted"

StoredToken = tuple[str, str, bool]
"""Text, origin, whether it is thinking."""

INTERRUPTED = "interrupted"
"""The reason of a reply whose process ended before it."""


@dataclass(slots=True)
class Message:
    """One message.

    Attributes:
        parent: the message before it; None for the first.
        role: `user` or `assistant`.
        thinking: what the assistant thought before it answered.
        tokens: the tokens of a reply.
        reason: why a reply ended; None while it has not.
        stats: figures of a reply, JSON values.
    """

    id: int
    parent: int | None
    role: str
    text: str
    thinking: str = ""
    tokens: list[StoredToken] = field(default_factory=list)
    reason: str | None = None
    stats: dict[str, Any] = field(default_factory=dict)

    def grown(
        self, tokens: Sequence[StoredToken], reason: str, stats: Mapping[str, Any]
    ) -> Message:
        """The message with more tokens, as it has ended."""
        return replace(
            self,
            text=self.text + "".join(text for text, _, thinking in tokens if not thinking),
            thinking=self.thinking + "".join(text for text, _, thinking in tokens if thinking),
            tokens=[*self.tokens, *tokens],
            reason=reason,
            stats=dict(stats),
        )


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation, without its messages.

    Attributes:
        head: the last message of the branch that was open.
        options: whatever the front end keeps with it, JSON values.
        num_messages: messages of all branches.
        updated: seconds since the epoch.
    """

    id: int
    title: str
    head: int | None
    options: dict[str, Any]
    updated: float
    num_messages: int = 0


def default_path() -> Path:
    """The user's database."""
    return data_dir() / "sessions.db"


class Sessions:
    """A database of conversations.

    Args:
        path: the file, made if it is not there; None: in memory, and gone with this object.

    Everything raises a LocalspecError with the reason where the file cannot be opened, read or written
    (no such database, damaged, full disk, locked, read-only).
    """

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.Lock()
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            where = ":memory:" if path is None else path
            self._database = sqlite3.connect(where, check_same_thread=False, timeout=_LOCKED_S)
            self._database.execute("PRAGMA foreign_keys = ON")
            # A commit is then a write without waiting for the disk: what a dead process wrote stays.
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise LocalspecError(
                f"the sessions in {path} cannot be opened: {reason(error)}"
            ) from error

    def close(self) -> None:
        with self._lock:
            self._database.close()

    # Sessions.

    def create(self, title: str, options: Mapping[str, Any]) -> int:
        """A new, empty session; gives its id."""
        now = time.time()
        with self._writing() as database:
            cursor = database.execute(
                "INSERT INTO sessions (title, options, created, updated) VALUES (?, ?, ?, ?)",
                (title, json.dumps(dict(options)), now, now),
            )
            return _id(cursor)

    def find(self, search: str = "") -> list[Session]:
        """Sessions, the latest first; with a search text, those whose title or messages have it."""
        pattern = "%" + search.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_") + "%"
        query = """
            SELECT s.id, title, head, options, updated, COUNT(m.id)
            FROM sessions s LEFT JOIN messages m ON m.session = s.id
            WHERE title LIKE :pattern ESCAPE '\\' OR EXISTS (
                SELECT 1 FROM messages WHERE session = s.id AND text LIKE :pattern ESCAPE '\\')
            GROUP BY s.id ORDER BY updated DESC, s.id DESC
        """
        with self._reading() as database:
            return [_session(row) for row in database.execute(query, {"pattern": pattern})]

    def get(self, session: int) -> Session | None:
        """One session, or None if there is none of this id."""
        query = (
            "SELECT id, title, head, options, updated, "
            "(SELECT COUNT(*) FROM messages WHERE session = sessions.id) FROM sessions WHERE id = ?"
        )
        with self._reading() as database:
            row = database.execute(query, (session,)).fetchone()
            return _session(row) if row else None

    def rename(self, session: int, title: str) -> None:
        with self._writing() as database:
            database.execute("UPDATE sessions SET title = ? WHERE id = ?", (title, session))

    def set_options(self, session: int, options: Mapping[str, Any]) -> None:
        with self._writing() as database:
            database.execute(
                "UPDATE sessions SET options = ? WHERE id = ?", (json.dumps(dict(options)), session)
            )

    def set_head(self, session: int, message: int | None) -> None:
        """Open another branch: the one that ends with this message."""
        with self._writing() as database:
            database.execute(
                "UPDATE sessions SET head = ?, updated = ? WHERE id = ?",
                (message, time.time(), session),
            )

    def delete(self, session: int) -> None:
        with self._writing() as database:
            database.execute("DELETE FROM sessions WHERE id = ?", (session,))

    def prompts(self, limit: int | None = 200) -> list[str]:
        """What the user wrote last, in all sessions, the latest first; None: all of it."""
        query = """
            SELECT text FROM messages WHERE role = 'user'
            GROUP BY text ORDER BY MAX(id) DESC LIMIT ?
        """
        with self._reading() as database:
            return [row[0] for row in database.execute(query, (-1 if limit is None else limit,))]

    # Messages.

    def messages(self, session: int) -> list[Message]:
        """All messages of all branches, the oldest first; replies that were cut off are whole again."""
        self._mend(session)
        query = """
            SELECT id, parent, role, text, thinking, tokens, reason, stats
            FROM messages WHERE session = ? ORDER BY id
        """
        with self._reading() as database:
            return [_message(row) for row in database.execute(query, (session,))]

    def add(self, session: int, parent: int | None, role: str, text: str = "") -> Message:
        """A new message, which becomes the head."""
        now = time.time()
        with self._writing() as database:
            cursor = database.execute(
                "INSERT INTO messages (session, parent, role, text, thinking, tokens, stats, created) "
                "VALUES (?, ?, ?, ?, '', '[]', '{}', ?)",
                (session, parent, role, text, now),
            )
            message = Message(_id(cursor), parent, role, text)
            database.execute(
                "UPDATE sessions SET head = ?, updated = ? WHERE id = ?", (message.id, now, session)
            )
        return message

    def remove(self, message: int) -> None:
        """Remove a message, and what follows it; the head must not be among these."""
        with self._writing() as database:
            database.execute("DELETE FROM messages WHERE id = ?", (message,))

    def resume(self, message: int) -> None:
        """A reply that had ended goes on: until it has ended again, it is cut off."""
        with self._writing() as database:
            database.execute("UPDATE messages SET reason = NULL WHERE id = ?", (message,))

    def grow(self, message: int, tokens: Sequence[StoredToken]) -> None:
        """Write tokens of a reply under way."""
        with self._writing() as database:
            database.executemany(
                "INSERT INTO growing (message, text, origin, thinking) VALUES (?, ?, ?, ?)",
                [(message, *token) for token in tokens],
            )

    def finish(self, message: int, reason: str, stats: Mapping[str, Any]) -> Message:
        """End a reply: its tokens become its text. What it had before (it was continued) stays."""
        with self._writing() as database:
            return _finish(database, message, reason, stats)

    def _mend(self, session: int) -> None:
        """Make replies whole that grew after they had ended (they were left), or never ended."""
        query = """
            SELECT id, reason, stats FROM messages WHERE session = ? AND role = 'assistant' AND
            (reason IS NULL OR id IN (SELECT message FROM growing))
        """
        with self._reading() as database:
            cut = database.execute(query, (session,)).fetchall()
        if cut:
            with self._writing() as database:
                for message, reason, stats in cut:
                    _finish(database, message, reason or INTERRUPTED, json.loads(stats))

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._database
            except (sqlite3.Error, ValueError, TypeError) as error:
                raise LocalspecError(f"the sessions cannot be read: {error}") from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction."""
        with self._lock:
            try:
                with self._database:
                    yield self._database
            except sqlite3.IntegrityError as error:
                # Rows refer to their session and their message, and to nothing else.
                raise LocalspecError(_DELETED) from error
            except (sqlite3.Error, ValueError, TypeError) as error:
                raise LocalspecError(f"the session cannot be saved: {error}") from error


def _finish(
    database: sqlite3.Connection, message: int, reason: str, stats: Mapping[str, Any]
) -> Message:
    row = database.execute(
        "SELECT id, parent, role, text, thinking, tokens, reason, stats FROM messages WHERE id = ?",
        (message,),
    ).fetchone()
    if row is None:
        raise LocalspecError(_DELETED)
    grown = database.execute(
        "SELECT text, origin, thinking FROM growing WHERE message = ? ORDER BY rowid", (message,)
    )
    tokens = [(text, origin, bool(thinking)) for text, origin, thinking in grown]
    whole = _message(row).grown(tokens, reason, stats)
    database.execute(
        "UPDATE messages SET text = ?, thinking = ?, tokens = ?, reason = ?, stats = ? WHERE id = ?",
        (
            whole.text,
            whole.thinking,
            json.dumps(whole.tokens, ensure_ascii=False),
            reason,
            json.dumps(whole.stats),
            message,
        ),
    )
    database.execute("DELETE FROM growing WHERE message = ?", (message,))
    return whole


def _id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _session(row: Sequence[Any]) -> Session:
    number, title, head, options, updated, num_messages = row
    return Session(number, title, head, json.loads(options), updated, num_messages)


def _message(row: Sequence[Any]) -> Message:
    number, parent, role, text, thinking, tokens, reason, stats = row
    known = [(part, origin, bool(thought)) for part, origin, thought in json.loads(tokens)]
    return Message(number, parent, role, text, thinking, known, reason, json.loads(stats))
