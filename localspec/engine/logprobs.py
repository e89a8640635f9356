"""The target's log-probabilities of committed tokens, as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from localspec.engine.request import TokenLogprob


def token_logprobs(logits: mx.array, tokens: Sequence[int], num_top: int) -> list[TokenLogprob]:
    """One entry for each token.

    Args:
        logits: [n, V] of any float dtype, each the row that its token was chosen from.
        tokens: n ids.
        num_top: alternatives for each.
    """
    logits = logits.astype(mx.float32)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(logprobs, mx.array(list(tokens))[:, None], axis=-1)[:, 0]
    if not num_top:
        return [TokenLogprob(float(value), []) for value in np.array(chosen)]
    num_top = min(num_top, logprobs.shape[-1])
    ids = mx.argpartition(-logprobs, num_top - 1, axis=-1)[:, :num_top]
    values = mx.take_along_axis(logprobs, ids, axis=-1)
    order = mx.argsort(-values, axis=-1)
    ids, values = (mx.take_along_axis(part, order, axis=-1) for part in (ids, values))
    mx.eval(chosen, ids, values)
    return [
        TokenLogprob(float(logprob), [(int(i), float(v)) for i, v in zip(*row, strict=True)])
        for logprob, *row in zip(np.array(chosen), np.array(ids), np.array(values), strict=True)
    ]
