"""Which sequences and anchors a step trains on; a function of the seed and the step alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from localspec.train.corpus import Rollout

_ROUND = 64


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences padded on the right, with the target's states.

    Attributes:
        tokens: [B, S] int32.
        lengths: [B] int32, without padding.
        anchors: [B, A] int32, positions of anchors, from the last prompt token on.
        chained: [B, M] int32, all positions from the last prompt token on, in order; -1: padding.
        taps: [B, S, T, D], what the drafter reads.
        final: [B, S, D], after the target's final norm.
    """

    tokens: mx.array
    lengths: mx.array
    anchors: mx.array
    chained: mx.array
    taps: mx.array
    final: mx.array


class Order:
    """Passes over the corpus, in a new order each time, with sequences of like length together.

    Args:
        rollouts: the corpus.
        batch_size: sequences a step.
        seed: decides everything.
    """

    def __init__(self, rollouts: Sequence[Rollout], batch_size: int, seed: int) -> None:
        self._lengths = np.array([len(rollout.tokens) for rollout in rollouts])
        self._batch_size = min(batch_size, len(rollouts))
        self._seed = seed

    @property
    def steps_per_pass(self) -> int:
        return len(self._lengths) // self._batch_size

    def at(self, step: int) -> list[int]:
        """Indices of the sequences of a step."""
        number, place = divmod(step, self.steps_per_pass)
        random = np.random.default_rng([self._seed, number])
        # Lengths are sorted with noise, so that neighbours differ from pass to pass.
        noisy = self._lengths * random.uniform(0.9, 1.1, len(self._lengths))
        by_length = np.argsort(noisy, kind="stable")[: self.steps_per_pass * self._batch_size]
        groups = by_length.reshape(self.steps_per_pass, self._batch_size)
        return [int(i) for i in groups[random.permutation(self.steps_per_pass)[place]]]


def make_batch(
    rollouts: Sequence[Rollout],
    states: Sequence[np.ndarray],
    *,
    num_anchors: int,
    reads: Sequence[int],
    key: Sequence[int],
) -> Batch:
    """Pad sequences to one length and choose anchors.

    Args:
        rollouts: of the batch.
        states: of each, [S, kinds of states, D]; the last kind is after the final norm.
        num_anchors: A; drawn without repetition where the answer is long enough.
        reads: which kinds of states the drafter reads.
        key: seeds the choice of anchors.
    """
    longest = -(-max(len(rollout.tokens) for rollout in rollouts) // _ROUND) * _ROUND
    tokens = np.zeros((len(rollouts), longest), dtype=np.int32)
    padded = np.zeros((len(rollouts), longest, *states[0].shape[1:]), dtype=states[0].dtype)
    anchors = np.zeros((len(rollouts), num_anchors), dtype=np.int32)
    most = -(-max(rollout.num_answered for rollout in rollouts) // _ROUND) * _ROUND
    chained = np.full((len(rollouts), most), -1, dtype=np.int32)
    random = np.random.default_rng(list(key))
    for row, (rollout, state) in enumerate(zip(rollouts, states, strict=True)):
        length = len(rollout.tokens)
        tokens[row, :length] = rollout.tokens
        padded[row, :length] = state
        places = np.arange(rollout.prompt_length - 1, length - 1)
        chained[row, : len(places)] = places
        repeats = len(places) < num_anchors
        anchors[row] = np.sort(random.choice(places, num_anchors, replace=repeats))
    whole = mx.array(padded).astype(mx.float32)
    return Batch(
        tokens=mx.array(tokens),
        lengths=mx.array([len(r.tokens) for r in rollouts], dtype=mx.int32),
        anchors=mx.array(anchors),
        chained=mx.array(chained),
        taps=whole[:, :, mx.array(list(reads))],
        final=whole[:, :, -1],
    )
