"""Every architecture, sampled, keeps the law of a real target: the joint law of three tokens."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from families import make_model
from many_runs import run_many, run_one
from random_drafters import Misreporting, random_drafter
from tables import Floats, next_law
from test_lossless import p_value, tally
from test_width_lossless import experience

from localspec.engine.request import Request
from localspec.engine.sampling import SamplingParams
from localspec.engine.target import Target
from localspec.models.drafter import Drafter

RUNS = 20_000
# Chains have nothing to draft from before the second token.
VOCAB, PROMPT, WIDTH, NUM_TOKENS = 6, [4, 2], 2, 3
PARAMS = SamplingParams(temperature=0.8)


@pytest.fixture(scope="module")
def target() -> Target:
    model = make_model("llama", num_hidden_layers=1, vocab_size=VOCAB)
    # Sharp laws would hardly ever agree with those of a drafter that knows nothing.
    model.lm_head.weight = 0.3 * model.lm_head.weight
    return Target(model)


@pytest.fixture(scope="module")
def law(target: Target) -> Floats:
    """Of every continuation [V]*3, in float64 from the target's own logits at every prefix."""
    said = np.indices((VOCAB,) * (NUM_TOKENS - 1)).reshape(NUM_TOKENS - 1, -1).T
    texts = np.concatenate([np.tile(PROMPT, (len(said), 1)), said], axis=1)
    logits = target.forward(mx.array(texts), target.new_cache()).logits
    rows = np.array(logits[:, len(PROMPT) - 1 :]).astype(np.float64)
    law = np.zeros((VOCAB,) * NUM_TOKENS)
    for tokens, (first, second, third) in zip(said.tolist(), rows, strict=True):
        before = next_law(first, PROMPT, [], PARAMS)[tokens[0]]
        before *= next_law(second, PROMPT, tokens[:1], PARAMS)[tokens[1]]
        law[tuple(tokens)] = before * next_law(third, PROMPT, tokens, PARAMS)
    assert law.sum() == pytest.approx(1.0)
    return law


def request(seed: int) -> Request:
    return Request(PROMPT, NUM_TOKENS, PARAMS, seed=seed, width=WIDTH)


def counts(target: Target, drafter: Drafter, runs: int = RUNS) -> Floats:
    """How often each continuation came; some drafts must have stood and some fallen."""
    tokens, share_accepted = run_many(target, drafter, request, runs)
    assert 0.05 < share_accepted < 0.9
    for seed in range(0, runs, runs // 40):
        assert run_one(target, drafter, request(seed)).tokens == [*PROMPT, *tokens[seed].tolist()]
    return tally(tokens, VOCAB)


@pytest.mark.parametrize(
    ("architecture", "bits"),
    [
        ("dflash", None),
        ("dflash", 4),
        ("dflare", None),
        ("dspark", None),
        ("dfly", None),
        ("eagle3", None),
        ("eagle3-reduced", None),
        ("mtp", None),
    ],
)
def test_sampled_drafts_keep_the_law(
    target: Target, law: Floats, architecture: str, bits: int | None
) -> None:
    drafter = random_drafter(architecture, target, bits=bits, seed=1)
    assert p_value(counts(target, drafter), law) > 1e-3


def test_the_test_notices_drafts_drawn_at_another_temperature(target: Target, law: Floats) -> None:
    drafter = Misreporting(random_drafter("dflash", target, seed=1))
    assert p_value(counts(target, drafter, 4_000), law) < 1e-6


@pytest.mark.parametrize("architecture", ["dspark", "eagle3"])
def test_sampled_drafts_keep_the_law_where_confidences_choose_the_width(
    target: Target, law: Floats, architecture: str
) -> None:
    """EAGLE-3 stops its chain while drafting; DSpark's block is cut afterwards."""
    drafter = random_drafter(architecture, target, seed=1)

    def free(seed: int) -> Request:
        return Request(PROMPT, NUM_TOKENS, PARAMS, seed=seed)

    tokens, share_accepted = run_many(target, drafter, free, RUNS, experience)
    assert 0.05 < share_accepted < 0.95
    assert p_value(tally(tokens, VOCAB), law) > 1e-3
