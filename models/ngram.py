"""The n-gram drafter: what followed the last tokens the last time they occurred.

Needs no weights and no training. It pays where output repeats the prompt or itself: editing, quoting,
code. After prompt lookup decoding (A. Saxena, 2023).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from localspec.models.drafter import Draw, Proposal, TargetView

_KEY = 2
_LONGEST = 16
_CANDIDATES = 32
_MIN_CONFIDENCE = 0.1
_LEARN_LAST = 256


@dataclass(slots=True)
class NgramState:
    """Tokens seen, where each pair of tokens ended, and how often a match of a length was right."""

    tokens: list[int] = field(default_factory=list)
    ends: defaultdict[tuple[int, ...], list[int]] = field(default_factory=lambda: defaultdict(list))
    hits: list[float] = field(default_factory=lambda: [1.0 + 0.25 * n for n in range(_LONGEST + 1)])
    tries: list[float] = field(
        default_factory=lambda: [2.0 + 0.25 * n for n in range(_LONGEST + 1)]
    )

    @property
    def arrays(self) -> list[mx.array]:
        return []

    def append(self, token: int) -> None:
        self.tokens.append(token)
        if len(self.tokens) >= _KEY:
            self.ends[tuple(self.tokens[-_KEY:])].append(len(self.tokens))

    def match(self) -> tuple[int, int]:
        """The longest match of the last tokens: where it ended, and its length (0: none).

        Among equally long matches the most recent wins.
        """
        tokens, size = self.tokens, len(self.tokens)
        best_end, best_length = 0, 0
        for end in reversed(self.ends.get(tuple(tokens[-_KEY:]), [])[-_CANDIDATES - 1 :]):
            if end == size:
                continue
            length = _KEY
            while (
                length < _LONGEST
                and length < end
                and tokens[end - 1 - length] == tokens[-1 - length]
            ):
                length += 1
            if length > best_length:
                best_end, best_length = end, length
        return best_end, best_length

    def confidence(self, length: int) -> float:
        """Share of matches of this length that were right about the next token."""
        length = min(length, _LONGEST)
        return self.hits[length] / self.tries[length]

    def learn(self, token: int) -> None:
        """Note whether the longest match would have been right about the token that came."""
        end, length = self.match()
        if length:
            self.hits[length] += self.tokens[end] == token
            self.tries[length] += 1.0


class NgramDrafter:
    """Copies from prompt and output; fits every target. Batch size one.

    Args:
        max_width: most tokens copied in a round.
    """

    tap_layers: tuple[int, ...] = ()

    def __init__(self, max_width: int = 16) -> None:
        self.max_width = max_width

    def bind(self, target: TargetView) -> None:
        pass

    def new_state(self) -> NgramState:
        return NgramState()

    def observe(self, state: NgramState, next_tokens: mx.array, taps: mx.array | None) -> None:
        """Append the tokens [1, n]; taps are not used.

        The very first token of the prompt is nobody's next token, so it is not seen; nothing needs it.
        """
        # Without an operation of MLX's, which would wait for the step that is under way.
        tokens = [int(token) for token in np.array(next_tokens)[0]]
        for index, token in enumerate(tokens):
            if len(tokens) - index <= _LEARN_LAST and len(state.tokens) >= _KEY:
                state.learn(token)
            state.append(token)

    def propose(
        self, state: NgramState, anchor: mx.array, width: int, draw: Draw
    ) -> Proposal | None:
        """Copy up to `width` tokens; nothing when no match promises to be right."""
        end, confidence = self._find(state, width)
        if not confidence:
            return None
        # A match that overlaps its own copy goes on into the copy: repetition continues.
        source = list(state.tokens)
        for offset in range(len(confidence)):
            source.append(source[end + offset])
        tokens = source[len(state.tokens) :]
        return Proposal(
            tokens=mx.array([tokens], dtype=mx.int32),
            confidence=mx.array([confidence], dtype=mx.float32),
        )

    def foretells(self, state: NgramState) -> bool:
        return True

    def foretell(self, state: NgramState, width: int) -> Sequence[float]:
        return self._find(state, width)[1]

    def _find(self, state: NgramState, width: int) -> tuple[int, list[float]]:
        """Where to copy from, and the confidences of the tokens there that are worth a try."""
        if len(state.tokens) < _KEY:
            return 0, []
        end, length = state.match()
        confidence: list[float] = []
        survival = 1.0
        for offset in range(width if length else 0):
            confident = state.confidence(length + offset)
            survival *= confident
            if survival < _MIN_CONFIDENCE:
                break
            confidence.append(confident)
        return end, confidence
