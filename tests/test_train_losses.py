"""The loss and its gradient, which is written by hand, against the formula and MLX's own chain rule."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from localspec.train.losses import draft_loss

NUM, SIZE = 12, 30


def inputs() -> tuple[mx.array, mx.array, mx.array, mx.array]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, SIZE, NUM)
    labels[3] = -1
    weights = rng.uniform(0, 2, NUM)
    weights[5] = 0.0
    return (
        mx.array(2 * rng.standard_normal((NUM, SIZE)), dtype=mx.float32),
        mx.array(2 * rng.standard_normal((NUM, SIZE)), dtype=mx.float32),
        mx.array(labels, dtype=mx.int32),
        mx.array(weights, dtype=mx.float32),
    )


def plainly(logits: mx.array, teacher: mx.array, labels: mx.array, weights: mx.array) -> mx.array:
    q, p = mx.softmax(logits, axis=-1), mx.softmax(teacher, axis=-1)
    lk = -mx.log(mx.minimum(p, q).sum(axis=-1))
    picked = mx.take_along_axis(q, mx.maximum(labels, 0)[:, None], axis=-1)[:, 0]
    ce = mx.where(labels >= 0, -mx.log(picked), 0.0)
    return (weights * (0.5 * ce + lk)).sum() / weights.sum()


def test_the_loss_is_the_formulas() -> None:
    logits, teacher, labels, weights = inputs()
    loss, _, acceptance = draft_loss(logits, teacher, labels, weights)
    assert loss.item() == pytest.approx(plainly(*inputs()).item(), rel=1e-5)
    q, p = np.array(mx.softmax(logits, axis=-1)), np.array(mx.softmax(teacher, axis=-1))
    np.testing.assert_allclose(np.array(acceptance), np.minimum(p, q).sum(-1), rtol=1e-5)


def test_the_gradient_is_the_chain_rules() -> None:
    logits, *rest = inputs()
    ours = mx.grad(lambda x: draft_loss(x, *rest)[0])(logits)
    theirs = mx.grad(lambda x: plainly(x, *rest))(logits)
    np.testing.assert_allclose(np.array(ours), np.array(theirs), atol=1e-6, rtol=1e-4)
    assert not np.array(ours)[5].any()


def test_agreement_counts_the_likeliest_tokens() -> None:
    logits, teacher, labels, weights = inputs()
    share = draft_loss(logits, teacher, labels, weights)[1].item()
    same = np.array(logits).argmax(-1) == np.array(teacher).argmax(-1)
    assert share == pytest.approx(np.average(same, weights=np.array(weights)))
    assert draft_loss(teacher, teacher, labels, weights)[1].item() == pytest.approx(1.0)


def test_a_draft_that_says_what_the_target_says_costs_its_cross_entropy_alone() -> None:
    _, teacher, labels, weights = inputs()
    _, _, acceptance = draft_loss(teacher, teacher, labels, weights)
    np.testing.assert_allclose(np.array(acceptance), 1.0, rtol=1e-5)


def test_extreme_logits_stay_finite() -> None:
    logits = mx.array([[500.0, -500.0, 0.0]])
    teacher = mx.array([[-500.0, 500.0, 0.0]])
    args = (teacher, mx.array([1]), mx.array([1.0]))
    assert np.isfinite(draft_loss(logits, *args)[0].item())
    assert np.isfinite(np.array(mx.grad(lambda x: draft_loss(x, *args)[0])(logits))).all()
