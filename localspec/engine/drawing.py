"""Whether drafts at a temperature are drawn from q or are q's likeliest token; both are exact.

A drawn draft stands with Σ min(p, q), a certain one with p of q's likeliest token. Rounds of drawn
drafts tell both, so those decide; while certain drafts are made, a drawn round now and then keeps the
figures new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

Way = Literal["greedy", "argmax", "sampled"]

_FIRST = 8
_REFRESH_EVERY = 32
_MEMORY = 0.05
_MARGIN = 0.005


@dataclass(slots=True)
class Drawing:
    """Of one drafter on one target, at temperatures above 0.

    Attributes:
        sampled, argmax: measured chances that a first draft stands.
    """

    sampled: float = 0.0
    argmax: float = 0.0
    _count: int = 0
    _rounds: int = 0

    def choose(self) -> Way:
        """How to make the next round's drafts; looks only at past rounds."""
        self._rounds += 1
        if self._count < _FIRST or self._rounds % _REFRESH_EVERY == 0:
            return "sampled"
        return "argmax" if self.argmax > self.sampled + _MARGIN else "sampled"

    def learn(self, sampled: float, argmax: float) -> None:
        """Take in the chances of a round of drawn drafts."""
        self._count += 1
        gain = max(_MEMORY, 1 / self._count)
        self.sampled += gain * (sampled - self.sampled)
        self.argmax += gain * (argmax - self.argmax)


def likeliest(logits: mx.array) -> tuple[mx.array, None]:
    """A `Draw` that is certain: [..., V] -> the argmax [...] int32, and no distribution."""
    return mx.argmax(logits, axis=-1).astype(mx.int32), None


def chances(p: mx.array, q: mx.array) -> mx.array:
    """Of the first draft, drawn and certain: p [1, 1+w, V], q [1, w, V] -> [2] float32."""
    first_p, first_q = p[0, 0], q[0, 0]
    sampled = mx.sum(mx.minimum(first_p, first_q))
    return mx.stack([sampled, first_p[mx.argmax(first_q)]])
