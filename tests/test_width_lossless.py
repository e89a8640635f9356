"""Choosing the width must not change the law of the output either; a search that looks ahead does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from many_runs import run_many
from tables import Floats, TableDrafter, TableTarget, exact_law
from test_lossless import LAWS, PROMPT, RUNS, VOCAB, p_value, tally

from localspec.engine.costs import Costs, CostTable
from localspec.engine.request import Request
from localspec.engine.width import AdaptiveWidth, Experience

# One draft is dear and a second one cheap: whether the first is worth it hangs on the second.
TABLE = CostTable(
    depths=(0,),
    widths=(0, 1, 2),
    draft=((0.0, 0.01, 0.01),),
    verify=((1.0, 1.4, 1.5),),
    plain=(1.0,),
)


class KnownCosts(Costs):
    """Costs that no clock changes, so that equal runs decide alike."""

    know_plain = True

    def learn_draft(self, width: int, depth: int, seconds: float) -> None:
        pass

    def learn_verify(self, width: int, depth: int, seconds: float) -> None:
        pass


def experience() -> Experience:
    return Experience(KnownCosts(TABLE))


def counts(drafter: TableDrafter, law: str, runs: int = RUNS) -> tuple[Floats, float]:
    target: Any = TableTarget(VOCAB, seed=1)

    def request(seed: int) -> Request:
        return Request(PROMPT, max_tokens=3, sampling=LAWS[law], seed=seed)

    tokens, share = run_many(target, drafter, request, runs, experience)
    return tally(tokens, VOCAB), share


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Widths that were chosen after looking at confidences."""
    chosen: list[int] = []
    right = AdaptiveWidth.cut

    def cut(self: AdaptiveWidth, confidences: Sequence[float | None], *, certain: bool) -> int:
        chosen.append(right(self, confidences, certain=certain))
        return chosen[-1]

    monkeypatch.setattr(AdaptiveWidth, "cut", cut)
    return chosen


@pytest.mark.parametrize("name", LAWS)
def test_sampled_drafts_keep_the_law_with_the_policy_on(name: str, widths: list[int]) -> None:
    law = exact_law(TableTarget(VOCAB, seed=1), PROMPT, LAWS[name], 3)
    seen, share = counts(TableDrafter(VOCAB, seed=2, confident=True), name)
    assert p_value(seen, law) > 1e-3
    # It did choose, and some drafts stood.
    assert len(set(widths)) > 1
    assert 0.05 < share < 0.95


def test_certain_drafts_keep_the_law_with_the_policy_on(widths: list[int]) -> None:
    name = "temperature 1, all"
    law = exact_law(TableTarget(VOCAB, seed=1), PROMPT, LAWS[name], 3)
    seen, _ = counts(TableDrafter(VOCAB, seed=2, greedy=True, confident=True), name)
    assert p_value(seen, law) > 1e-3
    assert len(set(widths)) > 1


def test_the_test_notices_a_search_over_drawn_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    right = AdaptiveWidth.cut

    def wrong(self: AdaptiveWidth, confidences: Sequence[float | None], *, certain: bool) -> int:
        return right(self, confidences, certain=True)

    monkeypatch.setattr(AdaptiveWidth, "cut", wrong)
    law = exact_law(TableTarget(VOCAB, seed=1), PROMPT, LAWS["temperature 1"], 3)
    seen, _ = counts(TableDrafter(VOCAB, seed=2, confident=True), "temperature 1")
    assert p_value(seen, law) < 1e-6


def test_runs_that_go_on_together_decide_alike() -> None:
    from many_runs import run_one

    drafter = TableDrafter(VOCAB, seed=2, confident=True)
    target: Any = TableTarget(VOCAB, seed=1)

    def request(seed: int) -> Request:
        return Request(PROMPT, max_tokens=3, sampling=LAWS["temperature 1"], seed=seed)

    tokens, _ = run_many(target, drafter, request, 200, experience)
    for seed, text in enumerate(tokens.tolist()):
        run = run_one(target, drafter, request(seed), experience=experience())
        assert run.tokens == [*PROMPT, *text]
    assert np.unique(tokens, axis=0).shape[0] > 20
