"""Speculation must not change the law of the output: the joint law of three tokens, by chi-square."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from scipy.stats import chi2
from tables import Floats, TableDrafter, TableTarget, exact_law

from localspec.engine import generation
from localspec.engine.acceptance import Verdict
from localspec.engine.generation import Generation
from localspec.engine.request import Request
from localspec.engine.sampling import SamplingParams, sample

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


def counts(drafter: Any, params: SamplingParams, runs: int = RUNS) -> Floats:
    """How often each continuation of three tokens came, over seeded runs of the real loop."""
    target: Any = TableTarget(VOCAB, seed=1)
    seen = np.zeros((VOCAB,) * 3)
    for seed in range(runs):
        # Widths vary, so that the three tokens are cut into rounds in every way.
        request = Request(PROMPT, max_tokens=3, sampling=params, seed=seed, width=1 + seed % 3)
        run = Generation(target, drafter, request)
        for _ in run.run():
            pass
        seen[tuple(run.tokens[len(PROMPT) :])] += 1
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
    assert p_value(counts(None, params), law) > 1e-3


def test_the_test_notices_a_residual_that_is_not_subtracted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = generation.accept_sampled

    def wrong(
        drafts: mx.array, q: mx.array, p: mx.array, accept_u: mx.array, token_u: mx.array
    ) -> Verdict:
        num_accepted, _ = right(drafts, q, p, accept_u, token_u)
        row = mx.take_along_axis(p, num_accepted[:, None, None], axis=1)[:, 0]
        return Verdict(num_accepted, sample(row, token_u))

    monkeypatch.setattr(generation, "accept_sampled", wrong)
    params = LAWS["temperature 1"]
    law = exact_law(TableTarget(VOCAB, seed=1), PROMPT, params, 3)
    assert p_value(counts(TableDrafter(VOCAB, seed=2), params, 4000), law) < 1e-6


def test_the_test_notices_drafts_drawn_at_another_temperature() -> None:
    params = LAWS["temperature 1"]
    law = exact_law(TableTarget(VOCAB, seed=1), PROMPT, params, 3)
    drafter = TableDrafter(VOCAB, seed=2, draw_temperature=0.5)
    assert p_value(counts(drafter, params, 4000), law) < 1e-6
