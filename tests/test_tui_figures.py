"""Figures and how they are drawn, without an app."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from localspec.engine.metrics import Stats
from localspec.tui.engine import Loaded, Round, Token
from localspec.tui.figures import Figures
from localspec.tui.help import figures_page
from localspec.tui.renderables import panel
from localspec.tui.renderables.bars import bar, columns
from localspec.tui.renderables.origins import legend, paint
from localspec.tui.renderables.panel import View


def figures(*rounds: tuple[int, int], plain_speed: float | None = 20.0) -> Figures:
    """Figures of rounds of (width, accepted), each of 0.05 s; those of width 0 are parked."""
    found, stats = Figures(plain_speed), Stats(prompt_tokens=10, time_to_first_token_s=0.2)
    for width, accepted in rounds:
        stats.add_round(
            width,
            accepted,
            accepted + 1,
            num_drafted=width,
            parked=not width,
            draft_s=0.0,
            verify_s=0.0,
        )
        stats.decode_s += 0.05
        found.add(Round((Token("x", "draft"),), width, width, accepted, accepted + 1, stats.copy()))
    return found


def test_figures_add_up() -> None:
    found = figures((3, 3), (3, 1), (0, 0), (3, 0))
    assert list(found.rounds) == [4, 2, 1, 1]
    assert found.accepted_now == 2.0
    assert found.stats.parked_share == 0.25
    assert not found.parked
    assert found.context_used == 18
    assert found.ratio == pytest.approx(8 / 0.2 / 20)
    assert figures((3, 0), (0, 0)).parked
    # Until plain decoding is measured: at most the accepted length.
    assert figures((3, 3), (3, 1), plain_speed=None).ratio == 3.0
    assert Figures().ratio is None
    # "Now" looks back on the last rounds only.
    assert figures(*[(3, 0)] * 20, *[(3, 3)] * 8).accepted_now == 4.0


def test_a_plain_step_alone_is_not_parked() -> None:
    found, stats = Figures(), Stats()
    for parked in (True, False):
        stats.add_round(0, 0, 1, num_drafted=0, parked=parked, draft_s=0.0, verify_s=0.0)
        found.add(Round((Token("x", "plain"),), 0, 0, 0, 1, stats.copy()))
        assert found.parked is parked
    assert "width 0   parked 50%" in panel.body(view(found), 29, 24).plain
    assert "parked" not in panel.line(view(found), 100).plain


def test_the_page_of_figures_tells_counts_from_shares() -> None:
    stats = Stats()
    for accepted in (2, 1, 0, 2):
        stats.add_round(
            2,
            accepted,
            accepted + 1,
            num_drafted=2,
            parked=False,
            draft_s=0.0,
            verify_s=0.0,
            arm="a",
        )
    rows = figures_page(json.loads(json.dumps({**asdict(stats), **stats.as_dict()}))).splitlines()
    assert "| proposed by position | 4 4 |" in rows
    assert "| accepted by position | 3 2 |" in rows
    assert "| acceptance by position | 75% 50% |" in rows
    assert "| widths | 0 0 4 |" in rows
    assert "| arms | a 4 |" in rows
    assert "No reply" in figures_page({})


def test_bars_are_drawn_to_an_eighth() -> None:
    assert bar(0.0, 4) == "    "
    assert bar(0.5, 4) == "██  "
    assert bar(1.0, 4) == "████"
    assert bar(7.0, 4) == "████"
    assert bar(1 / 32, 4) == "▏   "
    assert bar(0.4, 5) == "██   "


def test_columns_show_the_last_values() -> None:
    assert columns([1, 2, 3, 4], width=4, height=1, top=4) == ["▂▄▆█"]
    assert columns([4, 2], width=4, height=2, top=4) == ["  █ ", "  ██"]
    assert columns([9, 1, 2], width=2, height=1, top=2) == ["▄█"]
    assert columns([], width=3, height=1, top=1) == ["   "]


def view(found: Figures, drafter: str = "dfly") -> View:
    return View(found, Loaded("some-org/a-model-4bit", drafter, 8192), 700_000_000)


def test_the_panel_says_everything() -> None:
    body = panel.body(view(figures((3, 3), (3, 1), (0, 0))), 29, 24).plain
    for words in (
        "now 2.3   reply 2.33",
        "1 ████████████████████ 100%",
        "3 ██████████            50%",
        "width parked   parked 33%",
        "a-model-4bit",
        "drafter     dfly",
        "context     17 / 8192",
        "first token 0.20 s",
        "memory      0.70 GB",
    ):
        assert words in body
    assert all(len(line) <= 29 for line in body.splitlines())
    assert "drafting is off" in panel.body(view(figures((0, 0)), "none"), 29, 24).plain


def test_the_drafter_that_plays_is_named() -> None:
    found, stats = Figures(), Stats()
    shown = view(found, "auto")
    assert "drafter     auto\n" in panel.body(shown, 29, 24).plain
    for arm, words in (
        ("eagle3", "auto → eagle3"),
        ("ngram", "auto → ngram"),
        ("none", "auto → plain"),
        ("eagle3", "auto → eagle3"),
        ("some-org/a-long-drafter", "auto → a-long-dr…"),
    ):
        stats.add_round(2, 1, 2, num_drafted=2, parked=False, draft_s=0.0, verify_s=0.0, arm=arm)
        found.add(Round((Token("x", "draft"),), 2, 2, 1, 2, stats.copy()))
        body = panel.body(shown, 29, 24).plain
        assert f"drafter     {words}\n" in body
        assert all(len(line) <= 29 for line in body.splitlines())
        assert words in panel.line(shown, 100).plain
    assert "auto" not in panel.line(shown, 60).plain


def test_a_context_that_is_not_known_is_no_number() -> None:
    assert "context     – / 8192" in panel.body(view(Figures()), 29, 24).plain
    assert "–/8192" in panel.line(view(Figures()), 60).plain


def test_positions_make_room_in_a_low_panel() -> None:
    found = view(figures(*[(9, 9)] * 3))
    tall, low = panel.body(found, 29, 40).plain, panel.body(found, 29, 20).plain
    assert tall.count("100%") == 8
    assert 1 <= low.count("100%") < 8
    assert len(low.splitlines()) <= 20


def test_the_line_has_what_fits() -> None:
    found = view(figures((3, 3), (3, 1)))
    whole = panel.line(found, 100).plain
    assert whole.startswith("60.0 tok/s  3.00x  acc 3.0/3.00")
    assert "16/8192" in whole
    short = panel.line(found, 24).plain
    assert short == "60.0 tok/s  3.00x"
    assert "≤3.00x" in panel.line(view(figures((3, 3), (3, 1), plain_speed=None)), 60).plain


def test_an_estimated_ratio_is_marked() -> None:
    assert panel.ratio(view(figures((3, 2)))).plain == "3.00x plain (20.0)"
    estimated = panel.ratio(view(figures((3, 2), plain_speed=None))).plain
    assert estimated == "≤ 3.00x plain, estimated"
    assert panel.ratio(view(Figures(12.5))).plain == "plain 12.5 tok/s"


def test_origins_have_styles_of_their_own() -> None:
    tokens = [("a", "draft", False), ("b", "bonus", False), ("c", "correction", False)]
    for ansi in (False, True):
        painted = paint(tokens, ansi=ansi)
        assert painted.plain == "abc"
        assert len({str(span.style) for span in painted.spans}) == 3
    assert "accepted  33%" in legend(tokens).plain
    assert "plain" not in legend(tokens).plain
    thought = paint([("hm", "draft", True), ("said", "draft", False)])
    assert thought.plain == "hm\n\nsaid"
