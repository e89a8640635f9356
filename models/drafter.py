"""The one interface that every drafter has, and the values that cross it.

The loop in `localspec.engine` knows nothing else about a drafter. Shapes use B for the batch, n for
positions, T for taps, w for drafts, V for the target's vocabulary and D for the target's hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import mlx.core as mx

Draw = Callable[[mx.array], tuple[mx.array, mx.array | None]]
"""Draws one token a row from logits [..., V] (any float dtype).

Returns tokens [...] (int32) and the distribution q [..., V] (float32) that they were drawn from, or
None where the draw is the argmax, so that q is one-hot. V may be a drafter's own, reduced vocabulary.
"""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts for the positions after the anchor.

    Attributes:
        tokens: [B, w] int32, ids in the target's vocabulary.
        q: [B, w, V] float32, the distribution each draft was drawn from; None: one-hot.
        confidence: [B, w] float32, the drafter's estimate that the target accepts draft k, given that
            it accepted the ones before; None: the drafter has no opinion.
    """

    tokens: mx.array
    q: mx.array | None = None
    confidence: mx.array | None = None

    @property
    def width(self) -> int:
        return self.tokens.shape[1]


class Pace(Protocol):
    """Ends a chain of drafts where the next is not worth its time."""

    def wants(self, confidence: mx.array) -> bool:
        """Whether to draw the next draft, from the confidence [B] that precedes its drawing."""
        ...

    def wants_more(self) -> bool:
        """Whether to compute another draft."""
        ...


class TargetView(Protocol):
    """What a drafter may use of its target: sizes, embedding and head."""

    @property
    def num_layers(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...

    def embed(self, tokens: mx.array) -> mx.array:
        """Rows of the embedding table, unscaled: [...] int -> [..., D]."""
        ...

    def head(self, hidden: mx.array) -> mx.array:
        """The target's head on states after the final norm: [B, n, D] -> [B, n, V]."""
        ...


class Drafter(Protocol):
    """A small model, or a rule, that guesses what the target says next.

    Attributes:
        tap_layers: the target states it reads, in the order of the T axis: i in 0..L-1 is the output of
            decoder layer i (the residual stream, before the final norm), -1 the embedding output,
            L (the number of layers) the last state after the final norm. Known after `bind`.
        max_width: most tokens it can propose in a round.
    """

    @property
    def tap_layers(self) -> tuple[int, ...]: ...
    @property
    def max_width(self) -> int: ...

    def bind(self, target: TargetView) -> None:
        """Share the target's embedding and head, and check dimensions.

        Raises:
            DrafterMismatch: the drafter was made for a target of other sizes.
        """
        ...

    def new_state(self) -> Any:
        """What the drafter remembers of one request; empty.

        It has a property `arrays`, its MLX arrays, which are evaluated between chunks of a prompt.
        Where `tap_layers` is not empty, it has `fork(position)`, a state of its own that has observed
        only the first positions, and `can_fork(position)`, whether that can be had exactly.
        """
        ...

    def observe(self, state: Any, next_tokens: mx.array, taps: mx.array | None) -> None:
        """Take in committed positions p..p+n-1, in order and without gaps.

        Args:
            state: from `new_state`; changed in place.
            next_tokens: [B, n] int32, the tokens at p+1..p+n; the last is the new anchor.
            taps: [B, n, T, D], the target's states at p..p+n-1; None where `tap_layers` is empty.
        """
        ...

    def propose(self, state: Any, anchor: mx.array, width: int, draw: Draw) -> Proposal | None:
        """Guess up to `width` tokens after the anchor, leaving the state as it was.

        Args:
            anchor: [B] int32, the last committed token.
            width: at least 1, at most `max_width`.
            draw: how to choose a token from logits, and its distribution.

        Returns:
            The proposal, which may be shorter than `width`; None: nothing worth verifying.
        """
        ...


@runtime_checkable
class StoppingDrafter(Protocol):
    """A drafter that computes one draft after another, so that stopping early saves time."""

    def propose_while(
        self, state: Any, anchor: mx.array, width: int, draw: Draw, pace: Pace
    ) -> Proposal | None:
        """As `propose`, up to the first draft that the pace does not want."""
        ...


@runtime_checkable
class ForetellingDrafter(Protocol):
    """A drafter that can say without the device what it would propose, so that it may be asked often."""

    def foretells(self, state: Any) -> bool:
        """Whether it can in this state."""
        ...

    def foretell(self, state: Any, width: int) -> Sequence[float]:
        """Confidences of the drafts that `propose` would give now; empty: it would give none."""
        ...
