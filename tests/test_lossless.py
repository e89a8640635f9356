"""Speculation must not change the law of the output: the joint law of three tokens, by chi-square."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from many_runs import Ints, run_many, run_one
from scipy.stats import chi2
from tables import Floats, TableDrafter, TableTarget, accept_without_subtracting, exact_law

from localspec.engine import generation
from localspec.engine.request import Request
from localspec.engine.sampling import SamplingParams

VOCAB, RUNS, PROMPT = 5, 20_000, [4]

LAWS = {
    "temperature 1": SamplingParams(temperature=1.0),
    "temperature 0.7": SamplingParams(temperature=0.7),
    "temperature 0.7, top-p": SamplingParams(temperature=0.7, top_p=0.8),
    "temperature 1, penalties": SamplingParams(
        temperature=1.0, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3
    ),
    "temperature 1, all": SamplingParams(
        temperature=1.0,
        top_k=5,
        top_p=0.9,
        min_p=0.02,
        presence_penalty=0.5,
        logit_bias={2: 0.7},
    ),
}


def request(params: SamplingParams, seed: int, width: int | None = None) -> Request:
    # Widths vary, so that the three tokens are cut into rounds in every way.
    width = 1 + seed % 3 if width is None else width
    return Request(PROMPT, max_tokens=3, sampling=params, seed=seed, width=width)


def counts(
    drafter: Any, params: SamplingParams, runs: int = RUNS, width: int | None = None
) -> Floats:
    """How often each continuation of three tokens came, over seeded runs of the real loop."""
    target: Any = TableTarget(VOCAB, seed=1)
    tokens, _ = run_many(target, drafter, lambda seed: request(params, seed, width), runs)
    return tally(tokens, VOCAB)


def tally(tokens: Ints, vocab: int) -> Floats:
    """Continuations [runs, n] -> how often each came [V]*n."""
    seen = np.zeros((vocab,) * tokens.shape[1])
    np.add.at(seen, tuple(tokens.T), 1)
    return seen


def p_value(seen: Floats, law: Floats) -> float:
    """Of the chi-square test, cells of under 5 expected pooled; 0 if the impossible was seen."""
    expected = law * seen.sum()
    if seen[expected == 0].any():
        return 0.0
    large = expected >= 5
    pooled_seen = np.append(seen[large], seen[~large].sum())
    pooled_expected = np.append(expected[large], expected[~large].sum())
    keep = pooled_expected > 0
    pooled_seen, pooled_expected = pooled_seen[keep], pooled_expected[keep]
    statistic = float(((pooled_seen - pooled_expected) ** 2 / pooled_expected).sum())
    return float(chi2.sf(statistic, len(pooled_seen) - 1))


@pytest.mark.parametrize("name", LAWS)
def test_sampled_drafts_keep_the_law(name: str) -> None:
    law = exact_law(TableTarget(VOCAB, seed=1), PROMPT, LAWS[name], 3)
    assert p_value(counts(TableDrafter(VOCAB, seed=2), LAWS[name]), law) > 1e-3


def test_certain_drafts_keep_the_law() -> None:
    params = LAWS["temperature 1, all"]
    law = exact_law(TableTarget(VOCAB, seed=1), PROMPT, params, 3)
    assert p_value(counts(TableDrafter(VOCAB, seed=2, greedy=True), params), law) > 1e-3


def test_plain_decoding_has_the_law() -> None:
    params = LAWS["temperature 1, all"]
    law = exact_law(TableTarget(VOCAB, seed=1), PROMPT, params, 3)
    assert p_value(counts(TableDrafter(VOCAB, seed=2), params, width=0), law) > 1e-3


@pytest.mark.parametrize("name", LAWS)
def test_many_runs_at_once_are_the_runs_one_by_one(name: str) -> None:
    target, drafter = TableTarget(VOCAB, seed=1), TableDrafter(VOCAB, seed=2)
    for width in (None, 0):
        tokens, _ = run_many(target, drafter, lambda seed: request(LAWS[name], seed, width), 200)  # noqa: B023
        for seed, text in enumerate(tokens.tolist()):
            given = request(LAWS[name], seed, width)
            assert run_one(target, drafter, given).tokens == [*PROMPT, *text]
            if width == 0:
                # Without a drafter the next step is launched before the last one is read.
                assert run_one(target, None, given).tokens == [*PROMPT, *text]


def test_the_test_notices_a_residual_that_is_not_subtracted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generation, "accept_sampled", accept_without_subtracting)
    params = LAWS["temperature 1"]
    law = exact_law(TableTarget(VOCAB, seed=1), PROMPT, params, 3)
    assert p_value(counts(TableDrafter(VOCAB, seed=2), params, 4000), law) < 1e-6


def test_the_test_notices_drafts_drawn_at_another_temperature() -> None:
    params = LAWS["temperature 1"]
    law = exact_law(TableTarget(VOCAB, seed=1), PROMPT, params, 3)
    drafter = TableDrafter(VOCAB, seed=2, draw_temperature=0.5)
    assert p_value(counts(drafter, params, 4000), law) < 1e-6
