"""Saved conversations: trees of messages, growth token by token, search, damage."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from localspec.errors import LocalspecError
from localspec.sessions import INTERRUPTED, Sessions, StoredToken


@pytest.fixture
def sessions(tmp_path: Path) -> Sessions:
    return Sessions(tmp_path / "folder" / "sessions.db")


def tokens(*words: str) -> list[StoredToken]:
    return [(word, "draft", False) for word in words]


def test_a_reply_grows_and_is_finished(sessions: Sessions) -> None:
    session = sessions.create("title", {"target": "model"})
    question = sessions.add(session, None, "user", "why?")
    reply = sessions.add(session, question.id, "assistant")
    sessions.grow(reply.id, [("because", "plain", True)])
    sessions.grow(reply.id, tokens("It ", "is."))
    whole = sessions.finish(reply.id, "stop", {"rounds": 2})
    assert (whole.text, whole.thinking, whole.reason) == ("It is.", "because", "stop")
    assert sessions.messages(session) == [question, whole]
    found = sessions.get(session)
    assert found is not None
    assert (found.head, found.options, found.num_messages) == (reply.id, {"target": "model"}, 2)


def test_what_a_dead_process_wrote_is_there(sessions: Sessions, tmp_path: Path) -> None:
    session = sessions.create("title", {})
    question = sessions.add(session, None, "user", "why?")
    reply = sessions.add(session, question.id, "assistant")
    sessions.grow(reply.id, tokens("half ", "a "))
    sessions.grow(reply.id, tokens("sentence"))
    # The first process never says goodbye.
    others = Sessions(tmp_path / "folder" / "sessions.db")
    mended = others.messages(session)[-1]
    assert (mended.text, mended.reason) == ("half a sentence", INTERRUPTED)
    assert [word for word, _, _ in mended.tokens] == ["half ", "a ", "sentence"]
    # It is continued where it ended.
    others.grow(reply.id, tokens(", whole."))
    assert others.finish(reply.id, "stop", {}).text == "half a sentence, whole."
    others.close()


def test_a_reply_that_was_left_keeps_its_ending(sessions: Sessions) -> None:
    session = sessions.create("title", {})
    reply = sessions.add(session, None, "assistant")
    sessions.grow(reply.id, tokens("one ", "two "))
    sessions.finish(reply.id, "cancelled", {"rounds": 2})
    # The engine's last round comes after that.
    sessions.grow(reply.id, tokens("three"))
    (left,) = sessions.messages(session)
    assert (left.text, left.reason, left.stats) == ("one two three", "cancelled", {"rounds": 2})
    # One that went on and then died was cut off, whatever its first ending.
    sessions.resume(reply.id)
    sessions.grow(reply.id, tokens(" four"))
    (cut,) = sessions.messages(session)
    assert (cut.text, cut.reason, cut.stats) == ("one two three four", INTERRUPTED, {"rounds": 2})


def test_without_a_file_all_is_in_memory() -> None:
    sessions = Sessions(None)
    sessions.add(sessions.create("t", {}), None, "user", "hello")
    assert sessions.prompts() == ["hello"]


def test_titles_and_messages_are_searched(sessions: Sessions) -> None:
    first = sessions.create("about 100% of_it", {})
    sessions.add(first, None, "user", "The Fibonacci numbers")
    second = sessions.create("another", {})
    sessions.add(second, None, "user", "nothing here")
    assert [session.id for session in sessions.find()] == [second, first]
    assert [session.id for session in sessions.find("fibonacci")] == [first]
    assert [session.id for session in sessions.find("100% of_")] == [first]
    assert [session.id for session in sessions.find("ANOTHER")] == [second]
    assert sessions.find("%x") == []
    sessions.rename(second, "renamed")
    assert [session.title for session in sessions.find("renam")] == ["renamed"]
    sessions.delete(first)
    assert [session.id for session in sessions.find()] == [second]
    assert sessions.messages(first) == []
    assert sessions.prompts() == ["nothing here"]


def test_prompts_are_the_latest_first_without_repeats(sessions: Sessions) -> None:
    session = sessions.create("t", {})
    for text in ("one", "two", "one", "three"):
        sessions.add(session, None, "user", text)
    assert sessions.prompts() == ["three", "one", "two"]
    assert sessions.prompts(limit=1) == ["three"]


def test_threads_may_write_at_once(sessions: Sessions) -> None:
    session = sessions.create("t", {})
    replies = [sessions.add(session, None, "assistant") for _ in range(4)]

    def write(message: int) -> None:
        for number in range(50):
            sessions.grow(message, tokens(f"{number} "))

    threads = [threading.Thread(target=write, args=(reply.id,)) for reply in replies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = "".join(f"{number} " for number in range(50))
    assert [message.text for message in sessions.messages(session)] == [expected] * 4


def test_what_is_no_database_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    path.write_bytes(b"this is not a database, though it is long enough to be one" * 20)
    with pytest.raises(LocalspecError, match=r"sessions\.db cannot be opened"):
        Sessions(path)


def test_a_failing_disk_is_said_in_words(sessions: Sessions, tmp_path: Path) -> None:
    session = sessions.create("t", {})
    with sqlite3.connect(tmp_path / "folder" / "sessions.db") as other:
        other.execute("DROP TABLE growing")
    reply = sessions.add(session, None, "assistant")
    with pytest.raises(LocalspecError, match="cannot be saved"):
        sessions.grow(reply.id, tokens("x"))
    with pytest.raises(LocalspecError, match="cannot be read"):
        sessions.messages(session)


def test_what_was_deleted_elsewhere_is_said_in_words(sessions: Sessions) -> None:
    session = sessions.create("t", {})
    reply = sessions.add(session, None, "assistant")
    sessions.delete(session)
    with pytest.raises(LocalspecError, match="it was deleted"):
        sessions.finish(reply.id, "stop", {})
    with pytest.raises(LocalspecError, match="it was deleted"):
        sessions.grow(reply.id, tokens("x"))
    with pytest.raises(LocalspecError, match="it was deleted"):
        sessions.add(session, None, "user", "still there?")


def test_damaged_rows_are_said_in_words(sessions: Sessions, tmp_path: Path) -> None:
    session = sessions.create("t", {})
    sessions.add(session, None, "user", "x")
    with sqlite3.connect(tmp_path / "folder" / "sessions.db") as other:
        other.execute("UPDATE messages SET tokens = '[[1'")
        other.execute("UPDATE sessions SET options = 'x'")
    for read in (lambda: sessions.messages(session), lambda: sessions.get(session), sessions.find):
        with pytest.raises(LocalspecError, match="cannot be read"):
            read()
