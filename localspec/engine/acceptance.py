"""The lossless rule: which drafts stand, and the token after them. Lazy; nothing is read here.

Speculative sampling after Leviathan et al. (arXiv 2211.17192) and Chen et al. (arXiv 2302.01318).
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from localspec.engine.sampling import sample


class Verdict(NamedTuple):
    """num_accepted [B] int32: leading drafts that stand; token [B] int32: the correction or bonus."""

    num_accepted: mx.array
    token: mx.array


def accept_certain(drafts: mx.array, chosen: mx.array) -> Verdict:
    """Certain drafts (q one-hot) stand while they are what the target chooses.

    With `chosen` drawn from p this is the rule of `accept_sampled` for a one-hot q: a draft x stands
    with p(x), and what takes its place has the law of p without x.

    Args:
        drafts: [B, w] int32.
        chosen: [B, w+1] int32, the target's own choice at each row; the last is the bonus token.
    """
    num_accepted = _leading(drafts == chosen[:, :-1])
    return Verdict(num_accepted, _row(chosen[..., None], num_accepted)[:, 0])


def accept_sampled(
    drafts: mx.array,
    q: mx.array,
    p: mx.array,
    accept_uniform: mx.array,
    token_uniform: mx.array,
) -> Verdict:
    """Draft x stands with min(1, p(x)/q(x)); the first that falls is redrawn from (p - q) above 0.

    Args:
        drafts: [B, w] int32, draft k drawn from q[:, k].
        q: [B, w, V] float32.
        p: [B, w+1, V] float32, the target's processed distribution at each row.
        accept_uniform: [B, w] float32 in [0, 1).
        token_uniform: [B] float32 in [0, 1), independent of the others.
    """
    p_draft = mx.take_along_axis(p[:, :-1], drafts[..., None], axis=-1)[..., 0]
    q_draft = mx.take_along_axis(q, drafts[..., None], axis=-1)[..., 0]
    num_accepted = _leading(accept_uniform * q_draft < p_draft)
    p_row = _row(p, num_accepted)
    # Past the last draft nothing was proposed, so the bonus comes from p itself.
    q_row = _row(mx.pad(q, [(0, 0), (0, 1), (0, 0)]), num_accepted)
    rest = mx.maximum(p_row - q_row, 0.0)
    # p equal to q up to rounding can leave nothing; then p itself is the law.
    some = mx.sum(rest, axis=-1, keepdims=True) > 0.0
    return Verdict(num_accepted, sample(mx.where(some, rest, p_row), token_uniform))


def _leading(stands: mx.array) -> mx.array:
    return mx.sum(mx.cumprod(stands.astype(mx.int32), axis=1), axis=1).astype(mx.int32)


def _row(values: mx.array, index: mx.array) -> mx.array:
    """Row index[b] of values [B, w+1, X] -> [B, X]."""
    return mx.take_along_axis(values, index[:, None, None], axis=1)[:, 0]
