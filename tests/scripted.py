"""A drafter that knows the text and is right a random number of times, then wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from localspec.models.drafter import Draw, Proposal, TargetView


@dataclass(slots=True)
class ScriptedState:
    """What was observed: tokens at positions 1.., taps at positions 0.. in the pieces given."""

    tokens: list[int] = field(default_factory=list)
    taps: list[mx.array] = field(default_factory=list)

    @property
    def arrays(self) -> list[mx.array]:
        return self.taps


class ScriptedDrafter:
    """Proposes a random number of true tokens and then wrong ones; now and then nothing.

    Args:
        text: prompt and continuation, as plain decoding writes them.
        vocab_size: V.
        seed: decides widths and how many drafts are right.
        tap_layers: target states to observe.
    """

    max_width = 8

    def __init__(
        self, text: Sequence[int], vocab_size: int, seed: int, tap_layers: tuple[int, ...] = ()
    ) -> None:
        self.tap_layers = tap_layers
        self.states: list[ScriptedState] = []
        self._text = list(text)
        self._vocab_size = vocab_size
        self._rng = np.random.default_rng(seed)

    def bind(self, target: TargetView) -> None:
        pass

    def new_state(self) -> ScriptedState:
        self.states.append(ScriptedState())
        return self.states[-1]

    def observe(self, state: ScriptedState, next_tokens: mx.array, taps: mx.array | None) -> None:
        assert (taps is None) == (not self.tap_layers)
        assert next_tokens.shape[0] == 1
        if taps is not None:
            assert taps.shape[:3] == (1, next_tokens.shape[1], len(self.tap_layers))
            state.taps.append(taps)
        state.tokens += [int(token) for token in np.array(next_tokens[0])]

    def propose(
        self, state: ScriptedState, anchor: mx.array, width: int, draw: Draw
    ) -> Proposal | None:
        # One token precedes the observed ones, and the last of them is the anchor.
        start = len(state.tokens) + 1
        width = int(self._rng.integers(0, width + 1))
        if width == 0:
            return None
        num_right = int(self._rng.integers(0, width + 1))
        right = self._text[start : start + num_right]
        wrong = [self._wrong(start + index) for index in range(len(right), width)]
        return Proposal(mx.array([right + wrong], dtype=mx.int32))

    def _wrong(self, position: int) -> int:
        true = self._text[position] if position < len(self._text) else 0
        return (true + int(self._rng.integers(1, self._vocab_size))) % self._vocab_size
