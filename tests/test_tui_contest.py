"""The table of drafters: `/compare all`, and some by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from chat_app import Chat, asynchronous, chat
from scripted_engine import PLAIN_SPEED, Script, ScriptedEngine
from textual.widgets import Static

from localspec.engine.metrics import Stats
from localspec.tui.contest import ALL, Contest, Entry, verdict
from localspec.tui.engine import PLAIN, Ended, Round, Token
from localspec.tui.local import LocalEngine
from localspec.tui.renderables.contest import table
from localspec.tui.screens.compare import CompareScreen
from localspec.tui.screens.contest import ContestScreen
from localspec.tui.settings import Settings

TEXT = "the same words for all of them, of course. " * 4
STEPS = Script(TEXT, pattern=(0,), width=0)
DRAFTS = Script(TEXT, pattern=(3, 1), width=3)


def engine(**rivals: Script) -> ScriptedEngine:
    return ScriptedEngine([Script("short.")], rivals={PLAIN: STEPS, **rivals})


def shown(c: Chat, id: str) -> str:
    return str(c.app.screen.query_one(f"#{id}", Static).render())


@asynchronous
async def test_all_drafters_run_alone_and_fill_a_table(tmp_path: Path) -> None:
    scripts = engine(eagle3=DRAFTS, ngram=Script(TEXT, pattern=(0,), width=1))
    async with chat(tmp_path, scripts) as c:
        await c.send("/compare all")
        assert c.app.screen is c.screen  # there is no prompt yet
        await c.ask("go")
        c.screen.streaming.view.figures.plain_speed = None
        loads = list(scripts.loads)
        await c.send("/compare all")
        await c.until(lambda: isinstance(c.app.screen, ContestScreen))
        await c.until(lambda: "Fastest" in shown(c, "verdict"))
        head, plain, eagle3, ngram = shown(c, "table").splitlines()
        assert head.split()[:5] == ["drafter", "length", "tokens/s", "of", "plain"]
        assert plain.split() == ["plain", "1.00", "20.0", "1.00x"]
        assert eagle3.split() == ["eagle3", "3.00", "52.2", "2.61x", "100%", "50%", "50%"]
        assert ngram.split() == ["ngram", "1.00", "19.0", "0.95x", "0%"]
        assert "Fastest on this prompt: eagle3, 2.61x" in shown(c, "verdict")
        assert "character for character" in shown(c, "verdict")
        assert "One prompt tells little; `localspec compare`" in shown(c, "note")
        # Each got the conversation up to its last prompt, first a few tokens of it to warm up.
        for other in scripts.beside_it.values():
            (warm, first), (run, second) = other.requests
            assert warm == run == [{"role": "user", "content": "go"}]
            assert first == replace(second, max_tokens=8)
            assert second.seed is not None
        assert not any(other.remembered for other in scripts.beside_it.values())
        await c.pilot.press("escape")
        await c.until(lambda: c.screen.streaming.view.figures.plain_speed)
        assert c.screen.streaming.view.figures.plain_speed == pytest.approx(PLAIN_SPEED)
        # What the chat has was never let go of.
        assert scripts.loads == loads
        assert c.screen.loaded
        assert c.screen.loaded.drafter == "dfly"
        await c.ask("again")
        assert c.branch[-1] == ("assistant", "short.")


@asynchronous
async def test_a_drafter_that_cannot_be_loaded_is_named_with_the_reason(tmp_path: Path) -> None:
    fails = replace(DRAFTS, error=RuntimeError("a planted failure"), fail_after=3)
    scripts = engine(fails=fails, dfly=DRAFTS, other=DRAFTS)
    async with chat(tmp_path, scripts) as c:
        await c.ask("go")
        await c.send("/compare broken fails dfly none dfly")
        await c.until(lambda: isinstance(c.app.screen, ContestScreen))
        await c.until(lambda: "Fastest" in shown(c, "verdict"))
        rows = shown(c, "table").splitlines()[1:]
        assert [row.split()[0] for row in rows] == ["plain", "broken", "fails", "dfly"]
        assert "✗ broken was made for another target" in rows[1]
        assert "a planted failure" in rows[2]
        assert "Fastest on this prompt: dfly, 2.61x" in shown(c, "verdict")


@asynchronous
async def test_it_tells_how_far_it_is_and_ends_within_a_round(tmp_path: Path) -> None:
    scripts = engine(dfly=replace(DRAFTS, gated=True), later=DRAFTS)
    scripts.may_load.clear()
    async with chat(tmp_path, scripts, ready=False) as c:
        scripts.may_load.set()
        await c.until(lambda: c.screen.streaming.view.figures.plain_speed)
        await c.ask("go")
        scripts.may_load.clear()
        await c.send("/compare all")
        await c.until(lambda: "1 of 3: plain, importing none (once)" in shown(c, "verdict"))
        assert "waits" in shown(c, "table").splitlines()[2]
        scripts.may_load.set()
        num_warm = len(TEXT.split()) // 3 + 1
        await c.until(lambda: "dfly" in scripts.beside_it)
        scripts.allow(num_warm + 2)
        await c.until(lambda: "2 of 3: dfly, " in shown(c, "verdict"))
        await c.until(lambda: "tokens" in shown(c, "verdict"))
        assert "1.00x" in shown(c, "table").splitlines()[1]
        # Nothing is measured beside it.
        before = scripts.num_measurements
        c.screen.streaming._measure()
        assert scripts.num_measurements == before
        await c.pilot.press("escape")
        await c.until(lambda: scripts.beside_it["dfly"].num_cancelled == 1)
        assert "later" not in scripts.beside_it
        await c.ask("again")
        assert c.branch[-1] == ("assistant", "short.")


@asynchronous
async def test_without_names_it_is_the_race(tmp_path: Path) -> None:
    async with chat(tmp_path) as c:
        await c.ask("go")
        await c.send("/compare")
        await c.until(lambda: isinstance(c.app.screen, CompareScreen))


@asynchronous
async def test_plain_decoding_can_be_set_beside_drafters(tmp_path: Path) -> None:
    async with chat(tmp_path, engine(dfly=DRAFTS)) as c:
        await c.ask("go")
        await c.send("/drafter none")
        await c.until(lambda: c.screen.loaded and not c.screen.loaded.drafts)
        await c.send("/compare dfly")
        await c.until(lambda: isinstance(c.app.screen, ContestScreen))
        await c.until(lambda: "Fastest on this prompt: dfly" in shown(c, "verdict"))


def entry(name: str, words: str, seconds: float) -> Entry:
    """A drafter that said this, a word a round, in so many seconds."""
    found, stats = Entry(name), Stats()
    for word in words.split():
        stats.add_round(9, 0, 1, num_drafted=9, parked=False, draft_s=0.0, verify_s=0.0)
        stats.decode_s += seconds / len(words.split())
        found.lap.add(Round((Token(word, "plain"),), 9, 9, 0, 1, stats.copy()))
    found.lap.add(Ended("stop", stats.copy()))
    return found


def test_the_table_fits() -> None:
    entries = [entry(PLAIN, "a b", 2.0), entry("some-org/a-drafter-of-a-long-name", "a b", 1.0)]
    wide, narrow = (table(entries, width).plain.splitlines() for width in (90, 54))
    assert all(len(line) <= 90 for line in wide)
    assert all(len(line) <= 54 for line in narrow)
    assert wide[0].endswith("acceptance by position")
    assert wide[2].startswith("a-drafter-of-a-long-name")
    assert wide[2].count("%") == 7
    assert narrow[0].endswith(" by position")
    assert narrow[2].startswith("a-drafter…")
    assert "2.00x" in narrow[2]
    assert narrow[2].count("%") == 3


def test_it_is_judged_by_what_was_measured() -> None:
    plain, fast, slow = entry(PLAIN, "a b", 2.0), entry("x", "a b", 1.0), entry("y", "c d", 4.0)
    assert "Fastest on this prompt: plain decoding. Not all texts" in verdict([plain, slow])
    assert "Fastest on this prompt: x, 2.00x as fast" in verdict([plain, fast, slow])
    assert "All texts are the same" in verdict([plain, fast])
    assert verdict([plain, Entry("x", fault="gone")]) == "There was nothing to compare."
    assert verdict([Entry(PLAIN), Entry("x")]) == "There was nothing to compare."


def test_real_models_run_and_the_chat_keeps_its_own(tiny: Path) -> None:
    local = LocalEngine()
    local.load(str(tiny), "ngram", lambda words: None)
    kept = local._model
    messages = [{"role": "user", "content": "w1 w2 w3 w1 w2 w3 w1 w2"}]
    contest = Contest(local, [ALL, str(tiny / "nothing")], messages, Settings(max_tokens=24))
    contest.run()
    assert contest.over
    plain, ngram, missing = contest.entries
    assert (plain.name, ngram.name) == (PLAIN, "ngram")
    assert plain.lap.text == ngram.lap.text != ""
    assert plain.lap.stats.proposed == 0
    assert plain.speed > 0 < ngram.speed
    assert "nothing" in missing.fault
    assert missing.lap.rounds == []
    assert local._model is kept
    # Cancelled before it begins, it measures nothing.
    other = Contest(local, [ALL], messages, Settings())
    other.cancel()
    other.run()
    assert other.over
    assert not any(each.lap.rounds for each in other.entries)
