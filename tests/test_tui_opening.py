"""Opening what is saved: long replies are drawn where they are looked at, and nothing moves then."""

from __future__ import annotations

import time
from pathlib import Path

from chat_app import Chat, asynchronous, chat
from scripted_engine import ScriptedEngine
from textual.widgets import Markdown

from localspec.sessions import Sessions
from localspec.tui.screens.chat import Start
from localspec.tui.widgets.part import Part

_TOKENS = 10_000
_SECONDS = 3.0
"""CPU seconds until a long reply can be read. It takes 1; drawn whole, 8 to 20."""


def saved(folder: Path, *replies: str) -> int:
    """A conversation with these replies."""
    sessions = Sessions(folder / "sessions.db")
    session = sessions.create("long", {"target": "smollm2-135m", "drafter": "dfly"})
    parent = None
    for reply in replies:
        parent = sessions.add(session, parent, "user", "Go on").id
        parent = sessions.add(session, parent, "assistant").id
        sessions.grow(parent, [(f"{word} ", "draft", False) for word in reply.split(" ")])
        sessions.finish(parent, "stop", {})
    sessions.close()
    return session


def long_reply(num_tokens: int) -> str:
    return "".join(
        f"## Section {n}\n\nSome prose with **bold** and `code` that wraps over more than one line, "
        f"because replies do that, too.\n\n- first point\n- second point\n\n"
        for n in range(num_tokens // 30)
    )


def drawn(c: Chat) -> int:
    return sum(part.drawn for part in c.screen.query(Part))


async def settled(c: Chat) -> None:
    """Wait until all in sight is drawn."""
    before = -1
    while before != drawn(c):
        before = drawn(c)
        for _ in range(5):
            await c.pilot.pause(0.02)


@asynchronous
async def test_a_long_reply_opens_at_once_and_stays_where_it_is_read(tmp_path: Path) -> None:
    session = saved(tmp_path, long_reply(_TOKENS), long_reply(300))
    async with chat(tmp_path) as c:
        begun = time.thread_time()
        await c.screen.open_session(session)
        await settled(c)
        assert time.thread_time() - begun < _SECONDS
        num_parts = len(c.screen.query(Part))
        assert 0 < drawn(c) < num_parts / 4
        transcript = c.screen.transcript
        assert transcript.scroll_y == transcript.max_scroll_y
        # Reading back: what is above is drawn, at other heights than guessed, and nothing moves.
        heights = {transcript.max_scroll_y}
        for _ in range(8):
            transcript.scroll_up(animate=False)
            transcript.scroll_page_up(animate=False)
            await c.pilot.pause()
            from_end = transcript.max_scroll_y - transcript.scroll_y
            await settled(c)
            assert transcript.max_scroll_y - transcript.scroll_y == from_end
            heights.add(transcript.max_scroll_y)
        assert len(heights) > 1
        # From afar, too, what is in sight is drawn.
        transcript.scroll_home(animate=False)
        await settled(c)
        first = c.screen.query(Part).first()
        assert first.drawn
        assert first.rows == first.markdown.outer_size.height
        assert drawn(c) < num_parts


@asynchronous
async def test_an_opened_reply_goes_on(tmp_path: Path) -> None:
    session = saved(tmp_path, long_reply(600))
    async with chat(tmp_path, start=Start("smollm2-135m", "dfly", session=session)) as c:
        before = c.replies[0].source
        await c.pilot.press("f8")
        await c.until(lambda: c.engine.requests and not c.screen.streaming.replying)
        assert c.replies[0].source == c.branch[-1][1] == before + "Hello from the script."
        await settled(c)
        assert "script" in str(c.screen.query(Markdown).last().source)


@asynchronous
async def test_origins_and_back_leave_nothing_undrawn(tmp_path: Path) -> None:
    session = saved(tmp_path, long_reply(600))
    async with chat(tmp_path) as c:
        await c.pilot.press("f2")
        await c.screen.open_session(session)
        await c.pilot.pause()
        assert drawn(c) == 0
        await c.pilot.press("f2")
        await c.until(lambda: c.screen.query(Part).last().drawn)


@asynchronous
async def test_references_of_an_opened_reply_find_their_definitions(tmp_path: Path) -> None:
    filler = "\n\n".join(["words " * 20] * 30)
    session = saved(tmp_path, f"See [the site][s].\n\n{filler}\n\n[s]: https://example.org\n")
    async with chat(tmp_path) as c:
        await c.screen.open_session(session)
        c.screen.transcript.scroll_home(animate=False)
        await settled(c)
        assert "https://example.org" in c.screen.query(Markdown).first().source


@asynchronous
async def test_a_model_that_is_being_loaded_is_not_asked_for_again(tmp_path: Path) -> None:
    session = saved(tmp_path, "short")
    engine = ScriptedEngine()
    engine.may_load.clear()
    async with chat(tmp_path, engine, ready=False) as c:
        await c.until(lambda: c.screen.models.under_way)
        await c.screen.open_session(session)
        await c.pilot.pause(0.1)
        said = [note.message for note in c.app._notifications]
        engine.may_load.set()
        await c.until(lambda: c.screen.loaded)
        assert engine.loads == [("smollm2-135m", "dfly")]
        assert not said
