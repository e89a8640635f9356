"""`localspec verify`: it passes what is lossless, and notices planted faults of many kinds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from families import make_model
from random_drafters import random_drafter
from tables import TableDrafter, TableTarget, accept_without_subtracting
from typer.testing import CliRunner

from localspec.cli import app
from localspec.engine import generation
from localspec.engine.acceptance import Verdict
from localspec.engine.sampling import History, SamplingParams
from localspec.engine.target import Target
from localspec.engine.width import AdaptiveWidth
from localspec.lab.law import Draws, check_joint, check_tokens, classify
from localspec.lab.noise import measure
from localspec.lab.verify import SampledProof, prove_greedy, prove_sampled

VOCAB, SMALL, SAMPLES = 12, 5, 1500
PROMPTS = [[4, 2, 1], [1, 3, 3, 3], [0, 4, 2]]
PLAIN = SamplingParams(temperature=0.8)


@pytest.fixture(scope="module")
def target() -> Target:
    model = make_model("llama", num_hidden_layers=1, vocab_size=VOCAB)
    # Sharp laws would hardly ever agree with those of a drafter that knows nothing.
    model.lm_head.weight = 0.5 * model.lm_head.weight
    return Target(model)


def table() -> Any:
    return TableTarget(SMALL, seed=1)


def prove(
    target: Any,
    drafter: Any,
    sampling: SamplingParams = PLAIN,
    width: int | None = 2,
    samples: int = SAMPLES,
    num_tokens: int = 60,
) -> SampledProof:
    return prove_sampled(target, drafter, PROMPTS, sampling, samples, num_tokens, width=width)


ALL = SamplingParams(
    temperature=1.0,
    top_p=0.9,
    top_k=4,
    min_p=0.02,
    repetition_penalty=1.2,
    frequency_penalty=0.1,
    presence_penalty=0.2,
)


@pytest.mark.parametrize("sampling", [PLAIN, ALL])
@pytest.mark.parametrize("width", [2, None])
def test_what_is_lossless_passes(sampling: SamplingParams, width: int | None) -> None:
    proof = prove(table(), TableDrafter(SMALL, seed=2, confident=True), sampling, width)
    assert proof.passed
    assert 0 < proof.accepted < proof.proposed
    assert proof.law.samples >= SAMPLES
    assert 0.01 < proof.law.noticeable < 0.08


def test_it_passes_with_a_real_target_and_drafter(target: Target) -> None:
    drafter = random_drafter("dflash", target, seed=1)
    assert prove(target, drafter, samples=300).passed


def test_drafts_drawn_at_another_temperature_are_noticed() -> None:
    drafter = TableDrafter(SMALL, seed=2, draw_temperature=0.2)
    assert not prove(table(), drafter, width=1, samples=2500).passed


def test_a_rest_that_is_not_subtracted_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "accept_sampled", accept_without_subtracting)
    assert not prove(table(), TableDrafter(SMALL, seed=2), samples=2500).passed


def test_penalties_that_forget_the_drafts_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = History.penalise

    def wrong(self: History, logits: mx.array, drafts: mx.array | None = None) -> mx.array:
        # The proof itself passes whole texts; only rounds are short.
        short = drafts is not None and drafts.shape[1] <= 3
        return right(self, logits, None if short else drafts)

    monkeypatch.setattr(History, "penalise", wrong)
    sampling = SamplingParams(temperature=0.8, presence_penalty=4.0)
    drafter = TableDrafter(SMALL, seed=2)
    assert not prove(table(), drafter, sampling, width=3, num_tokens=6).passed


def test_a_filter_that_the_loop_forgets_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = generation.accept_sampled

    def wrong(drafts: mx.array, q: mx.array, p: mx.array, *uniforms: mx.array) -> Verdict:
        return right(drafts, q, 0.98 * p + 0.02 / p.shape[-1], *uniforms)

    monkeypatch.setattr(generation, "accept_sampled", wrong)
    sampling = SamplingParams(temperature=1.0, top_k=2)
    proof = prove(table(), TableDrafter(SMALL, seed=2), sampling, samples=1000)
    assert proof.impossible
    assert not proof.passed


def test_a_search_over_drawn_drafts_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: AdaptiveWidth, confidences: Sequence[float | None], *, certain: bool) -> int:
        # Verified only where what follows the draft looks sure.
        self._chances = [0.5] * len(confidences)
        return 2 if len(confidences) > 1 and (confidences[1] or 0) > 0.5 else 0

    monkeypatch.setattr(AdaptiveWidth, "cut", wrong)

    def two(self: AdaptiveWidth, limit: int, depth: int, *, greedy: bool) -> int:
        self.way = "sampled"
        return min(limit, 2)

    monkeypatch.setattr(AdaptiveWidth, "choose", two)
    monkeypatch.setattr(AdaptiveWidth, "learn", lambda self, outcome: None)
    monkeypatch.setattr(generation.Generation, "_looks_ahead", False)
    drafter = TableDrafter(SMALL, seed=2, confident=True)
    assert not prove(table(), drafter, width=None, samples=4000).passed


def test_greedy_texts_are_the_same_and_a_wrong_token_is_an_error(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = random_drafter("dflash", target, seed=1)
    proof = prove_greedy(target, drafter, PROMPTS, 40, width=3)
    assert proof.passed
    assert proof.identical == proof.prompts == 3
    assert proof.tokens == 120

    def wrong(drafts: mx.array, chosen: mx.array) -> Verdict:
        # Every draft stands.
        num = mx.array([drafts.shape[1]], dtype=mx.int32)
        return Verdict(num, chosen[:, -1])

    monkeypatch.setattr(generation, "accept_certain", wrong)
    proof = prove_greedy(target, drafter, PROMPTS, 40, width=3)
    assert not proof.passed
    first = proof.divergences[0]
    assert first.margin > 2 * proof.noise
    assert first.plain != first.drafted


class Tied(TableTarget):
    """A table in which token 3 is hardly worse than the best; wide passes add something to it."""

    def __init__(self, bump: float) -> None:
        super().__init__(SMALL, seed=1)
        best = np.delete(self.logits, 3, axis=-1).max(axis=-1)
        self.logits[..., 3] = best - 5e-7
        self._table = mx.array(self.logits)
        self._bump = bump

    def verify(self, tokens: mx.array, cache: Any, *, taps: object = ()) -> Any:
        output = self.forward(tokens, cache)
        return output._replace(logits=output.logits + self._bump * (mx.arange(SMALL) == 3))


def test_a_near_tie_is_told_from_an_error() -> None:
    drafter = TableDrafter(SMALL, seed=2, greedy=True)
    near: Any = Tied(1e-6)
    proof = prove_greedy(near, drafter, PROMPTS, 20, width=2)
    assert proof.passed
    assert proof.identical == 0
    assert len(proof.divergences) == 3
    for each in proof.divergences:
        assert each.excused
        assert each.drafted == 3 != each.plain
        assert 0 < each.margin < 2 * proof.noise
    assert 0 < proof.noise <= proof.rounding
    # The same texts part, but what makes them part is no rounding: it would excuse itself.
    corrupt: Any = Tied(0.5)
    proof = prove_greedy(corrupt, drafter, PROMPTS, 20, width=2)
    assert not proof.passed
    assert proof.noise == pytest.approx(0.5, rel=1e-3)
    assert all(each.margin < 2 * proof.noise for each in proof.divergences)
    assert not any(each.excused for each in proof.divergences)


def test_wrong_wide_passes_are_an_error_where_no_greedy_text_shows_them() -> None:
    drafter = TableDrafter(SMALL, seed=2, greedy=True)
    # Less than the best tokens' lead, more than rounding.
    bumped: Any = Tied(-1e-3)
    proof = prove_greedy(bumped, drafter, PROMPTS, 20, width=2)
    assert proof.proposed > 0
    assert proof.identical == 3
    assert proof.noise == pytest.approx(1e-3, rel=1e-2)
    assert not proof.passed


def test_wide_passes_are_measured_against_rounding(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = measure(target, [[1, 2, 3, 4, 5, 6, 7]], [2])[2]
    assert right.positions == 7
    assert right.is_rounding
    assert 0 < right.rounding < 1e-4
    verify = Target.verify

    def noisy(self: Target, tokens: mx.array, cache: Any, **options: Any) -> Any:
        output = verify(self, tokens, cache, **options)
        return output._replace(logits=output.logits + 1e-3 * (mx.arange(VOCAB) == 3))

    monkeypatch.setattr(Target, "verify", noisy)
    noise = measure(target, [[1, 2, 3, 4, 5, 6, 7]], [2])[2]
    assert noise.largest == pytest.approx(1e-3, rel=0.05)
    assert noise.agreement == 1.0
    assert not noise.is_rounding
    assert noise.rounding == pytest.approx(right.rounding)


def test_a_text_that_ends_early_is_an_error(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = random_drafter("dflash", target, seed=1)
    right = generation.Generation.finish_reason

    def early(self: generation.Generation) -> Any:
        ends = self._drafter is not None and self.stats.generated_tokens >= 30
        return "stop" if ends else right(self)

    monkeypatch.setattr(generation.Generation, "finish_reason", early)
    proof = prove_greedy(target, drafter, PROMPTS, 40, width=3)
    assert not proof.passed
    assert proof.identical == 0
    for each in proof.divergences:
        assert each.position >= 30
        assert each.drafted is None
        assert each.plain is not None


def test_classes_are_by_rank() -> None:
    law = np.array([0.1, 0.4, 0.3, 0.05, 0.05, 0.1])
    number, promised = classify(law, 1)
    assert number == 0
    assert promised.sum() == pytest.approx(1.0)
    assert promised[:3] == pytest.approx([0.4, 0.3, 0.2])
    assert [classify(law, token)[0] for token in (2, 0, 5, 3)] == [1, 2, 2, 3]


def test_the_checks_have_the_level_they_say_and_power() -> None:
    rng = np.random.default_rng(0)

    def draws(moved: float) -> Draws:
        laws = rng.dirichlet([1.0] * 6, 800)
        laws = -np.sort(-laws, axis=1)
        true = laws.copy()
        true[:, 0] += moved * (1 - true[:, 0])
        true[:, 1:] *= 1 - moved
        seen = (true.cumsum(axis=1) < rng.random((800, 1))).sum(axis=1)
        none = np.zeros(800, dtype=np.int64)
        return Draws(seen, laws, none, none, none, np.eye(3)[none], none, np.eye(8)[none])

    right = [draws(0.0) for _ in range(200)]
    for check in (check_tokens, check_joint):
        p = np.array([check(each).p_value for each in right])
        assert 0.01 < (p < 0.05).mean() < 0.1
        assert 0.35 < (p < 0.5).mean() < 0.65
    # What is said to be noticed is noticed, nineteen times in twenty, and half of it is not.
    shift = check_tokens(right[0]).noticeable
    least = shift / float((1 - right[0].promised[:, 0]).mean())
    failed = [not check_tokens(draws(least)).passed for _ in range(100)]
    assert 0.85 < np.mean(failed) < 1.0
    assert np.mean([not check_tokens(draws(least / 2)).passed for _ in range(50)]) < 0.4
    # A law that depends on the token before is seen jointly, though each alone looks right.
    alone = draws(0.0)
    alone.promised[:] = [0.5, 0.5, 0, 0, 0, 0]
    alone.seen = np.arange(800) % 2
    assert check_tokens(alone).p_value > 0.5
    assert check_joint(alone).p_value < 1e-6


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["verify", *arguments])


def test_the_command_tells_newcomers_and_programs(
    tiny: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    common = ["-m", str(tiny), "-d", "ngram", "--prompts", "2", "--tokens", "24", "--width", "3"]
    done = run(*common, "--samples", "300", "--temperature", "0.3")
    assert done.exit_code == 0, done.output
    assert "LOSSLESS: the drafter changes the speed, not the text" in done.stdout
    assert "2 of 2 texts" in done.stdout
    assert "fails where p is below 0.0001" in done.stdout
    sampled = json.loads(run(*common, "--samples", "30", "--json").stdout)["sampled"]
    assert sampled["sampling"]["temperature"] == 1.0
    assert 0 < sampled["ids"]["p_value"] <= 1

    def wrong(drafts: mx.array, chosen: mx.array) -> Verdict:
        return Verdict(mx.array([drafts.shape[1]], dtype=mx.int32), chosen[:, -1])

    monkeypatch.setattr(generation, "accept_certain", wrong)
    done = run(*common, "--samples", "0", "--json")
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert report["lossless"] is False
    assert report["greedy"]["divergences"][0]["excused"] is False
    assert report["sampled"] is None


def test_the_command_refuses_to_sample_at_no_temperature() -> None:
    done = run("-m", "/nowhere", "--temperature", "0")
    assert "temperature" in str(done.exception)


def test_no_drafts_prove_nothing(tiny: Path) -> None:
    few = ["--prompts", "1", "--tokens", "2", "--samples", "2", "--width", "0"]
    done = run("-m", str(tiny), "-d", "ngram", *few)
    assert "0 of 0 drafts" in done.stdout
    assert "too few samples" in done.stdout
    assert "NOTHING WAS PUT TO THE TEST" in done.stdout
    assert "LOSSLESS" not in done.stdout
    assert done.exit_code == 1
    done = run("-m", str(tiny), "-d", "ngram", *few, "--json")
    assert json.loads(done.stdout)["lossless"] is None
    assert done.exit_code == 1
