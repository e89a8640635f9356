"""The chat when its database fails: it says so and goes on, without saving."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from chat_app import Chat, asynchronous, chat
from scripted_engine import Script, ScriptedEngine
from textual.widgets import Static

from localspec.sessions import Sessions
from localspec.tui.screens.chat import Start
from localspec.tui.widgets.notice import Notice


def full(c: Chat, file: Path) -> None:
    database = c.sessions._database
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages}")


def read_only(c: Chat, file: Path) -> None:
    c.sessions._database.execute("PRAGMA query_only = ON")


def damaged(c: Chat, file: Path) -> None:
    with sqlite3.connect(file) as other:
        other.executescript("DROP TABLE growing; UPDATE messages SET tokens = 'x'")


def locked(c: Chat, file: Path) -> None:
    c.sessions._database.execute("PRAGMA busy_timeout = 10")
    other = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    # It is not to be collected while the chat runs.
    c.app.locking = other  # type: ignore[attr-defined]


def notices(c: Chat) -> list[str]:
    return [str(notice.render()) for notice in c.screen.query(Notice)]


@pytest.mark.parametrize("fail", [full, read_only, damaged, locked])
def test_the_chat_goes_on_unsaved(tmp_path: Path, fail: Callable[[Chat, Path], None]) -> None:
    text = "a word and another one, " * 300

    @asynchronous
    async def scenario() -> None:
        engine = ScriptedEngine([Script(text, gated=True)])
        async with chat(tmp_path, engine) as c:
            await c.send("Go on")
            engine.allow(5)
            await c.until(lambda: c.replies and c.replies[0].source)
            fail(c, tmp_path / "sessions.db")
            engine.allow(5000)
            await c.until(lambda: not c.screen.streaming.replying)
            assert c.branch[-1] == ("assistant", text)
            await c.until(lambda: notices(c))
            (words,) = notices(c)
            assert "cannot be saved" in words
            assert "it goes on unsaved" in words
            # All that it can do goes on, in memory.
            engine.scripts = [Script("Fine.")]
            await c.ask("again")
            assert c.branch[-2:] == [("user", "again"), ("assistant", "Fine.")]
            await c.pilot.press("ctrl+r")
            await c.until(lambda: len(engine.requests) == 3 and not c.screen.streaming.replying)
            assert c.replies[-1].versions_note.strip() == "‹ 2/2 ›"
            await c.pilot.press("f9")
            c.prompt.put("edited")
            await c.pilot.press("enter")
            await c.until(lambda: len(engine.requests) == 4 and not c.screen.streaming.replying)
            assert c.branch[2:] == [("user", "edited"), ("assistant", "Fine.")]
            await c.send("/save A title")
            await c.send("/set temperature 0.5")
            assert c.screen.conversation.title == "A title"
            # Reading may fail too.
            await c.pilot.press("up", "ctrl+u", "ctrl+s")
            await c.pilot.pause()
            await c.pilot.press("escape", "ctrl+n")
            await c.ask("a new one")
            assert c.branch == [("user", "a new one"), ("assistant", "Fine.")]
            assert c.app.is_running

    scenario()


@asynchronous
async def test_a_conversation_that_was_deleted_elsewhere_goes_on(tmp_path: Path) -> None:
    engine = ScriptedEngine([Script("One two three four five six.", gated=True)])
    async with chat(tmp_path, engine) as c:
        await c.send("Go on")
        engine.allow(1)
        await c.until(lambda: c.replies and c.replies[0].source)
        c.sessions.delete(1)
        engine.allow(100)
        await c.until(lambda: not c.screen.streaming.replying and notices(c))
        assert "it was deleted; it goes on unsaved" in notices(c)[0]
        assert c.branch[-1] == ("assistant", "One two three four five six.")


@asynchronous
async def test_a_list_of_sessions_that_cannot_be_read_is_a_notice(tmp_path: Path) -> None:
    async with chat(tmp_path) as c:
        await c.ask("first")
        await c.pilot.press("ctrl+n")
        damaged(c, tmp_path / "sessions.db")
        await c.pilot.press("ctrl+s")
        await c.until(
            lambda: "cannot be read" in str([note.message for note in c.app._notifications])
        )
        assert not str(c.app.screen.query_one("#preview Static", Static).render())
        await c.pilot.press("ctrl+r", "escape", "enter")
        await c.until(lambda: c.app.screen is c.screen)
        assert c.branch == []
        assert not await c.screen.open_session(1)


@asynchronous
async def test_what_is_not_saved_from_the_start_is_said(tmp_path: Path) -> None:
    start = Start("smollm2-135m", "dfly", notice="the disk is full; conversations are not saved")
    async with chat(tmp_path, start=start) as c:
        assert notices(c) == ["✗ the disk is full; conversations are not saved"]
        await c.ask("hello")
        assert c.branch[-1] == ("assistant", "Hello from the script.")


def test_sessions_in_memory_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Sessions(None).create("t", {})
    assert not list(tmp_path.iterdir())
