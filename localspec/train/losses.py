"""What a draft is trained for: the label, and the share of the target's distribution it covers.

A draft drawn from q stands with probability sum min(p, q), so the distillation term is its negative
logarithm (LK; AngelSpec, arXiv 2607.25852), which pulls hardest where q covers little. Cross-entropy
to the label, a draw from p or its likeliest token, steadies the start.
"""

from __future__ import annotations

from typing import cast

import mlx.core as mx

_CE_WEIGHT = 0.5
_LEAST_ACCEPTANCE = 1e-4


def draft_loss(
    logits: mx.array, teacher: mx.array, labels: mx.array, weights: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """Weighted means over drafts.

    Args:
        logits: [N, K], any float dtype.
        teacher: [N, K], the target's logits at the same positions.
        labels: [N] int32, a place in the vocabulary; -1: the label is outside it.
        weights: [N], not negative.

    Returns:
        The loss and the share of drafts whose likeliest token is the target's, as scalars; the
        acceptance sum min(p, q) of each draft [N], without gradient.
    """
    logits, teacher = logits.astype(mx.float32), teacher.astype(mx.float32)
    total = mx.maximum(weights.sum(), 1e-6)
    loss, acceptance = cast(
        tuple[mx.array, mx.array], _loss(logits, teacher, labels, weights / total)
    )
    agree = mx.argmax(logits, axis=-1) == mx.argmax(teacher, axis=-1)
    share = mx.stop_gradient((agree * weights).sum() / total)
    return loss, share, mx.stop_gradient(acceptance)


@mx.custom_function
def _loss(
    logits: mx.array, teacher: mx.array, labels: mx.array, weights: mx.array
) -> tuple[mx.array, mx.array]:
    q, p, log_sum = _distributions(logits, teacher)
    acceptance = mx.maximum(mx.minimum(p, q).sum(axis=-1), _LEAST_ACCEPTANCE)
    known = labels >= 0
    picked = mx.take_along_axis(logits, mx.maximum(labels, 0)[:, None], axis=-1)[:, 0]
    ce = mx.where(known, log_sum - picked, 0.0)
    loss = (weights * (_CE_WEIGHT * ce - mx.log(acceptance))).sum()
    return loss, acceptance


@_loss.vjp
def _loss_vjp(
    primals: tuple[mx.array, ...], cotangents: tuple[mx.array, ...], outputs: tuple[mx.array, ...]
) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """By hand, for it takes a third of the passes over [N, K] that the chain rule would."""
    logits, teacher, labels, weights = primals
    q, p, _ = _distributions(logits, teacher)
    acceptance = outputs[1][:, None]
    # d sum min(p, q) / d logits = q * ([q < p] - sum of q where q < p)
    below = (q < p).astype(mx.float32)
    covered = (q * below).sum(axis=-1, keepdims=True)
    known = (labels >= 0).astype(mx.float32)[:, None]
    scale = (weights * cotangents[0])[:, None]
    gradient = q * ((covered - below) / acceptance + _CE_WEIGHT * known) * scale
    at = mx.maximum(labels, 0)[:, None]
    picked = mx.take_along_axis(gradient, at, axis=-1) - _CE_WEIGHT * known * scale
    gradient = mx.put_along_axis(gradient, at, picked, axis=-1)
    return gradient, mx.zeros_like(teacher), mx.zeros_like(labels), mx.zeros_like(weights)


def _distributions(logits: mx.array, teacher: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """q and p [N, K], and the logarithm of q's normaliser [N]."""
    highest = mx.max(logits, axis=-1, keepdims=True)
    raised = mx.exp(logits - highest)
    total = raised.sum(axis=-1, keepdims=True)
    above = mx.exp(teacher - mx.max(teacher, axis=-1, keepdims=True))
    return (
        raised / total,
        above / above.sum(axis=-1, keepdims=True),
        (mx.log(total) + highest)[:, 0],
    )
