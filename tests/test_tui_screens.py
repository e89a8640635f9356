"""Dialogs: sessions, settings, models, the race, help."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from chat_app import asynchronous, chat
from scripted_engine import Script, ScriptedEngine
from textual.widgets import Digits, Input, Markdown, OptionList, Static

from localspec.engine.metrics import Stats
from localspec.sessions import StoredToken
from localspec.tui.engine import Choice
from localspec.tui.screens.compare import CompareScreen
from localspec.tui.screens.info import InfoScreen
from localspec.tui.screens.pick import PickScreen
from localspec.tui.screens.sessions import SessionsScreen
from localspec.tui.widgets.lane import Lane
from localspec.tui.widgets.origin_text import OriginText


@asynchronous
async def test_sessions_are_searched_renamed_deleted_and_opened(tmp_path: Path) -> None:
    async with chat(tmp_path) as c:
        for question in ("about apples", "about pears", "about plums"):
            await c.pilot.press("ctrl+n")
            await c.ask(question)
        await c.pilot.press("ctrl+s")
        screen = c.app.screen
        assert isinstance(screen, SessionsScreen)
        options = screen.query_one(OptionList)
        assert options.option_count == 3
        await c.pilot.press(*"pears")
        await c.until(lambda: options.option_count == 1)
        await c.until(lambda: "about pears" in str(screen.query_one("#preview Static").render()))
        await c.pilot.press("ctrl+r")
        c.app.screen.query_one(Input).value = "Fruit with pears"
        await c.pilot.press("enter")
        await c.until(lambda: c.sessions.find("pears")[0].title == "Fruit with pears")
        screen.query_one(Input).value = "apples"
        await c.until(lambda: options.option_count == 1)
        await c.pilot.press("ctrl+d")
        assert len(c.sessions.find()) == 3
        await c.pilot.press("ctrl+d")
        await c.until(lambda: len(c.sessions.find()) == 2)
        # The one that is open stays.
        screen.query_one(Input).value = "plums"
        await c.until(lambda: options.option_count == 1)
        await c.pilot.press("ctrl+d", "ctrl+d")
        assert len(c.sessions.find()) == 2
        screen.query_one(Input).value = ""
        await c.until(lambda: options.option_count == 2)
        await c.pilot.press("down", "enter")
        await c.until(lambda: c.branch and c.branch[0] == ("user", "about pears"))
        assert c.screen.conversation.title == "Fruit with pears"


@asynchronous
async def test_settings_are_taken_or_refused_in_place(tmp_path: Path) -> None:
    async with chat(tmp_path) as c:
        await c.pilot.press("f6")
        c.app.screen.query_one("#set-temperature", Input).value = "hot"
        await c.pilot.press("enter")
        error = c.app.screen.query_one("#setting-error", Static)
        await c.until(lambda: "temperature must be" in str(error.render()))
        c.app.screen.query_one("#set-temperature", Input).value = "0.8"
        c.app.screen.query_one("#set-max_tokens", Input).value = "50"
        await c.pilot.press("enter")
        await c.until(lambda: c.screen.settings.temperature == 0.8)
        assert c.screen.settings.max_tokens == 50
        await c.pilot.press("f6", "escape")
        assert c.app.screen is c.screen


@asynchronous
async def test_models_are_picked_from_a_list_or_typed(tmp_path: Path) -> None:
    async with chat(tmp_path) as c:
        await c.pilot.press("ctrl+l", *"4bit", "enter")
        await c.until(lambda: c.engine.loads[-1] == ("other/model-4bit", "dfly"))
        await c.until(lambda: not c.screen.models.under_way)
        await c.pilot.press("ctrl+l")
        c.app.screen.query_one(Input).value = "some-org/new-model"
        await c.pilot.press("enter")
        await c.until(lambda: c.engine.loads[-1] == ("some-org/new-model", "dfly"))
        await c.until(lambda: not c.screen.models.under_way)
        # What is typed can be had, though an installed name has it in it.
        await c.pilot.press("ctrl+l", *"other/model", "down", "enter")
        await c.until(lambda: c.engine.loads[-1] == ("other/model", "dfly"))
        await c.until(lambda: not c.screen.models.under_way)
        await c.pilot.press("f5", "down", "enter")
        await c.until(lambda: c.engine.loads[-1] == ("other/model", "none"))


@asynchronous
async def test_a_whole_name_is_picked_before_longer_ones(tmp_path: Path) -> None:
    async with chat(tmp_path) as c:
        choices = [Choice("org/model-4bit"), Choice("model")]
        picked: list[str | None] = []
        c.app.push_screen(PickScreen("Model", choices, "or type"), picked.append)
        await c.pilot.press(*"model", "enter")
        await c.until(lambda: picked == ["model"])


@asynchronous
async def test_the_system_prompt_is_edited(tmp_path: Path) -> None:
    async with chat(tmp_path) as c:
        await c.pilot.press("f7", *"Be kind.", "ctrl+s")
        await c.until(lambda: c.screen.system == "Be kind.")
        await c.ask("hello")
        assert c.engine.requests[0][0][0] == {"role": "system", "content": "Be kind."}


@asynchronous
async def test_the_race_shows_both_and_measures(tmp_path: Path) -> None:
    text = "the same words for both of them, of course. " * 2
    async with chat(tmp_path, ScriptedEngine([Script(text, pattern=(2,), width=3)])) as c:
        await c.pilot.press("f4")
        assert c.app.screen is c.screen  # there is no prompt yet
        await c.ask("go")
        c.screen.streaming.view.figures.plain_speed = None
        await c.pilot.press("f4")
        screen = c.app.screen
        assert isinstance(screen, CompareScreen)
        verdict = screen.query_one("#verdict", Static)
        await c.until(lambda: "as fast" in str(verdict.render()))
        assert "2.61x as fast: 52.2 against 20.0 tok/s" in str(verdict.render())
        assert "character for character" in str(verdict.render())
        for name in ("plain", "drafted"):
            lane = screen.query_one(f"#{name}", Lane)
            shown = str(lane.query_one(OriginText).query(".part").first(Static).render())
            assert shown.split() == text.split()
        assert screen.query_one("#plain", Lane).query_one(Digits).value == "20.0"
        (_, first), (_, second) = c.engine.requests[-2:]
        assert first.seed == second.seed is not None
        await c.pilot.press("escape")
        await c.until(lambda: c.screen.streaming.view.figures.plain_speed)


@asynchronous
async def test_leaving_the_race_stops_it(tmp_path: Path) -> None:
    engine = ScriptedEngine([Script("short."), Script("word " * 50, gated=True)])
    async with chat(tmp_path, engine) as c:
        await c.ask("go")
        engine.allow(2)
        await c.pilot.press("f4")
        await c.until(lambda: c.app.screen.query_one("#drafted OriginText").query(".part"))
        await c.pilot.press("escape")
        await c.until(lambda: engine.num_cancelled == 1)
        engine.scripts = [Script("Fine.")]
        await c.ask("again")
        assert c.branch[-1] == ("assistant", "Fine.")


@asynchronous
async def test_all_rounds_of_a_frame_are_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ScriptedEngine([Script("short."), Script("word " * 60, pattern=(2,), gated=True)])
    written: list[int] = []
    write = Lane.write

    def counted(lane: Lane, tokens: Sequence[StoredToken], stats: Stats) -> None:
        written.append(len(tokens))
        write(lane, tokens, stats)

    monkeypatch.setattr(Lane, "write", counted)
    async with chat(tmp_path, engine) as c:
        await c.ask("go")
        await c.pilot.press("f4")
        screen = c.app.screen
        assert isinstance(screen, CompareScreen)
        assert screen._timer
        screen._timer.pause()
        engine.allow(10)
        await c.until(lambda: screen._turns["drafted"]._updates.qsize() >= 10)
        screen._frame()
        assert written == [30]


@asynchronous
async def test_nothing_is_measured_while_a_race_is_run(tmp_path: Path) -> None:
    engine = ScriptedEngine([Script("short."), Script("word " * 50, gated=True)])
    async with chat(tmp_path, engine) as c:
        await c.ask("go")
        await c.pilot.press("f4")
        await c.until(lambda: len(engine.requests) == 2)
        # The clock strikes, with the race on top and below another dialog.
        c.screen.streaming._measure()
        c.app.push_screen(InfoScreen("above", "the race"))
        await c.pilot.pause()
        c.screen.streaming._measure()
        assert engine.num_measurements == 1
        await c.pilot.press("escape", "escape")
        await c.until(lambda: engine.num_cancelled == 1)
        c.screen.streaming._measure()
        await c.until(lambda: engine.num_measurements == 2)


@asynchronous
async def test_what_the_user_asked_is_remembered_once_and_nothing_else(tmp_path: Path) -> None:
    async with chat(tmp_path) as c:
        await c.ask("first")
        await c.pilot.press("ctrl+r")
        await c.until(lambda: len(c.engine.requests) == 2 and not c.screen.streaming.replying)
        await c.pilot.press("f8")
        await c.until(lambda: len(c.engine.requests) == 3 and not c.screen.streaming.replying)
        await c.pilot.press("f4")
        await c.until(lambda: len(c.engine.requests) == 5)
        await c.pilot.press("escape")
        await c.ask("second")
        assert c.engine.num_measurements
        assert c.engine.remembered == ["first", "second"]


@asynchronous
async def test_help_and_figures_are_pages(tmp_path: Path) -> None:
    async with chat(tmp_path) as c:
        await c.pilot.press("f1")
        assert "## Figures" in c.app.screen.query_one(Markdown).source
        await c.pilot.press("escape")
        await c.ask("hello")
        await c.send("/stats")
        page = c.app.screen.query_one(Markdown).source
        assert "accepted length" in page
        assert "time to first token s" in page
