"""The tokens that a loss runs over, and the target's head on them.

A large vocabulary makes the head most of a training step, and most of its rows hardly ever occur, so
the loss runs over the corpus's most frequent tokens. Drafters are served with the whole head all the
same, except EAGLE-3's own reduced one, whose rows these tokens then are.
"""

from __future__ import annotations

from collections.abc import Iterable

import mlx.core as mx
import numpy as np

from localspec.models.drafter import TargetView

_CHUNK = 256


def frequent_tokens(rollouts: Iterable[tuple[int, ...]], vocab_size: int, size: int) -> np.ndarray:
    """Ids of the most frequent tokens, ascending: int64 [min(size, vocab_size)]."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for tokens in rollouts:
        np.add.at(counts, np.array(tokens, dtype=np.int64), 1)
    # Ties go to the lower id, so that the choice is the same everywhere.
    ranked = np.lexsort((np.arange(vocab_size), -counts))
    return np.sort(ranked[:size])


class Vocabulary:
    """The target's head on some of its tokens.

    Args:
        target: whose head it is.
        ids: ascending token ids [K].

    Attributes:
        ids: [K] int32.
        index: [V] int32, a token's place among the ids; -1: it is not there.
    """

    def __init__(self, target: TargetView, ids: np.ndarray) -> None:
        index = np.full(target.vocab_size, -1, dtype=np.int32)
        index[ids] = np.arange(len(ids), dtype=np.int32)
        self.ids = mx.array(ids.astype(np.int32))
        self.index = mx.array(index)
        self._target = target
        self._rows = self._linear_rows()
        mx.eval(self.ids, self.index, self._rows)

    def logits(self, states: mx.array) -> mx.array:
        """The target's logits for the ids: states after the final norm [.., D] -> [.., K]."""
        if self._rows is not None:
            return states @ self._rows.T
        flat = states.reshape(1, -1, states.shape[-1])
        return self._target.head(flat)[0][:, self.ids].reshape(*states.shape[:-1], -1)

    def _linear_rows(self) -> mx.array | None:
        """The head's rows [K, D] in float32; None where the head is more than a matrix."""
        size = self._target.hidden_size
        trial = mx.random.normal((1, 2, size), key=mx.random.key(0))
        sums = mx.concatenate([trial, trial.sum(axis=1, keepdims=True)], axis=1)
        first, second, both = self._target.head(sums)[0].astype(mx.float32)
        if not bool(mx.allclose(first + second, both, rtol=1e-2, atol=1e-2)):
            return None
        columns = []
        for start in range(0, size, _CHUNK):
            units = mx.eye(size, dtype=mx.float32)[start : start + _CHUNK]
            columns.append(self._target.head(units[None])[0][:, self.ids].astype(mx.float32))
            mx.eval(columns[-1])
        return mx.concatenate(columns, axis=0).T
