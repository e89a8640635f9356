"""The target's states at every token of a rollout, computed once and kept within a budget of disk.

Taps, the last hidden state and so the teacher's distribution come from one forward pass. They are kept
as float16, a file a rollout, and shared by all drafters that tap the same layers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np

from localspec.engine.target import Target
from localspec.errors import TrainingError, reason
from localspec.train.corpus import Corpus

_BATCH_TOKENS = 4096


class StateStore:
    """States [S, len(taps) + 1, D] float16 of a corpus's rollouts.

    Args:
        target: whose states.
        corpus: whose rollouts; the folder of the states lies in its own.
        taps: layers, as `Target.forward` counts them; the last kind of state is after the final norm.
        budget: bytes that the folder may hold; beyond them states are computed each time.
    """

    def __init__(self, target: Target, corpus: Corpus, taps: Sequence[int], *, budget: int) -> None:
        self._target = target
        self._corpus = corpus
        self._layers = (*taps, target.num_layers)
        self._folder = corpus.folder / ("states-" + "-".join(str(tap) for tap in taps))
        self._folder.mkdir(exist_ok=True)
        self._left = budget - sum(path.stat().st_size for path in self._folder.glob("*.npy"))

    def get(self, indices: Sequence[int]) -> list[np.ndarray]:
        """States of these rollouts.

        Raises:
            TrainingError: the disk is full, or a file is broken.
        """
        missing = [index for index in dict.fromkeys(indices) if not self._path(index).exists()]
        computed: dict[int, np.ndarray] = {}
        for group in self._groups(missing):
            for index, states in zip(group, self._compute(group), strict=True):
                computed[index] = states
                self._keep(index, states)
        return [computed[i] if i in computed else self._load(i) for i in indices]

    def _groups(self, indices: Sequence[int]) -> list[list[int]]:
        groups: list[list[int]] = []
        longest = 0
        for index in sorted(indices, key=lambda i: len(self._corpus[i].tokens)):
            longest = max(longest, len(self._corpus[index].tokens))
            if groups and (len(groups[-1]) + 1) * longest <= _BATCH_TOKENS:
                groups[-1].append(index)
            else:
                groups.append([index])
        return groups

    def _compute(self, indices: Sequence[int]) -> list[np.ndarray]:
        sequences = [self._corpus[index].tokens for index in indices]
        longest = max(len(tokens) for tokens in sequences)
        padded = np.zeros((len(sequences), longest), dtype=np.int32)
        for row, tokens in enumerate(sequences):
            padded[row, : len(tokens)] = tokens
        output = self._target.forward(
            mx.array(padded), self._target.new_cache(), taps=self._layers, rows=1
        )
        assert output.taps is not None
        states = np.array(output.taps.astype(mx.float16))
        return [state[: len(tokens)] for state, tokens in zip(states, sequences, strict=True)]

    def _keep(self, index: int, states: np.ndarray) -> None:
        if states.nbytes > self._left:
            return
        path = self._path(index)
        beside = path.with_suffix(f".{os.getpid()}.new")
        try:
            with beside.open("wb") as file:
                np.save(file, states)
            beside.replace(path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise TrainingError(f"{path} cannot be written: {reason(error)}") from error
        self._left -= states.nbytes

    def _load(self, index: int) -> np.ndarray:
        path = self._path(index)
        try:
            states: np.ndarray = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise TrainingError(f"{path} is broken: {reason(error)}; delete it") from error
        if states.shape[:2] != (len(self._corpus[index].tokens), len(self._layers)):
            raise TrainingError(f"{path} does not hold the states of its rollout; delete it")
        return states

    def _path(self, index: int) -> Path:
        return self._folder / f"{index:07d}.npy"
