"""What is known of one drafter's rounds, told to another; and what cards and rounds say of drafts."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from localspec.engine.costs import Costs, CostTable
from localspec.engine.drawing import Drawing, chances
from localspec.provenance import TRAINING_FILE, claimed_acceptance

MEASURED = CostTable(
    depths=(0, 1000),
    widths=(0, 1, 4),
    draft=((0.0, 0.01, 0.02), (0.0, 0.02, 0.04)),
    verify=((0.05, 0.06, 0.08), (0.06, 0.08, 0.14)),
    plain=(0.048, 0.058),
)


def test_tables_are_read_between_their_points() -> None:
    assert MEASURED.verify_at(4, 500) == pytest.approx(0.11)
    assert MEASURED.draft_at(2.5, 0) == pytest.approx(0.015)
    # Beyond the last width the slope goes on; before the first depth it is level.
    assert MEASURED.verify_at(7, 0) == pytest.approx(0.10)
    assert MEASURED.plain_at(-5) == MEASURED.plain_at(0)


def test_the_chances_of_drawn_and_certain_drafts_are_by_definition() -> None:
    p = mx.array([[[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]]])
    q = mx.array([[[0.2, 0.7, 0.1]]])
    assert np.array(chances(p, q)) == pytest.approx([0.2 + 0.3 + 0.1, 0.3])


def test_drafts_are_made_the_way_that_stands_more_often_and_the_figures_stay_new() -> None:
    drawing = Drawing()

    def choices(sampled: float, argmax: float, rounds: int) -> list[str]:
        ways = []
        for _ in range(rounds):
            ways.append(str(drawing.choose()))
            if ways[-1] == "sampled":
                drawing.learn(sampled, argmax)
        return ways

    assert choices(0.5, 0.7, 8) == ["sampled"] * 8
    assert (drawing.sampled, drawing.argmax) == pytest.approx((0.5, 0.7))
    assert choices(0.5, 0.7, 64).count("sampled") == 2
    # What has changed is noticed by the drawn rounds now and then.
    choices(0.7, 0.5, 3000)
    assert set(choices(0.7, 0.5, 40)) == {"sampled"}


def test_a_card_claims_the_chance_that_gives_its_accepted_length(tmp_path: Path) -> None:
    def claimed(text: str) -> dict[str, float]:
        (tmp_path / TRAINING_FILE).write_text(text)
        return claimed_acceptance(tmp_path)

    assert claimed_acceptance(tmp_path) == {}
    length = 1 + 0.6 + 0.6**2 + 0.6**3
    card = {"accepted_length": length, "width": 3}
    card["accepted_length_by_kind"] = {"code": 1.875, "self": 1.0, "math": 9.0}
    expected = {"": 0.6, "code": 0.5, "chat": 0.05, "math": 0.95}
    assert claimed(json.dumps(card)) == pytest.approx(expected, abs=1e-6)
    assert claimed("{}") == {}
    assert claimed("no JSON") == {}


def test_nothing_gets_cheaper_for_ever_with_depth() -> None:
    table = CostTable(
        depths=(64, 512),
        widths=(0, 1, 4),
        draft=((0.0, 0.10, 0.40), (0.0, 0.09, 0.41)),
        verify=((1.0, 1.2, 1.5), (0.99, 1.3, 1.5)),
        plain=(1.0, 0.99),
    )
    for depth in (512, 5_000, 50_000):
        assert table.draft_at(1, depth) == 0.09
        assert table.plain_at(depth) == 0.99
    assert table.verify_at(1, 512 + 448) == pytest.approx(1.4)
    costs = Costs(table)
    costs.learn_plain(50_000, 1.1)
    costs.learn_draft(1, 50_000, 0.2)
    assert 0.09 < costs.draft(1, 50_000) <= 0.25
