"""How far a pass over several tokens differs from decoding one by one, on this machine.

Floats added in another order give other last digits. Where the two best logits are nearer than that, the
choice can differ; this measures how near that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import mlx.core as mx
import numpy as np

from localspec.engine.target import Target

_PIECE = 256
"""Positions whose logits are kept at once."""
_SLACK = 4.0
"""Two orders of adding differ in no two models alike; so much more than the known one is no rounding."""


@dataclass(slots=True)
class Noise:
    """Of one width.

    Attributes:
        positions: compared.
        largest: difference of any logit anywhere.
        agreeing: positions at which both have the same best token.
        margins: between the two best logits of one-token decoding, where they do not.
        rounding: the most that floats added in another order explain; see `measure`.
    """

    positions: int = 0
    largest: float = 0.0
    agreeing: int = 0
    margins: list[float] = field(default_factory=list)
    rounding: float = 0.0

    @property
    def agreement(self) -> float:
        return self.agreeing / self.positions if self.positions else 1.0

    @property
    def is_rounding(self) -> bool:
        """Whether wide passes are right up to rounding; else something in them is wrong."""
        return self.largest <= self.rounding

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "agreement": self.agreement, "is_rounding": self.is_rounding}


def measure(
    target: Target, texts: Sequence[Sequence[int]], widths: Sequence[int]
) -> dict[int, Noise]:
    """Compare passes of 1+width tokens with passes of one, over the same texts.

    Every pass goes on from a cache that passes of its own width filled, as in generation. What rounding
    explains is told by passes that have nothing to do with drafting: texts read as prompts are, against
    the same one-token passes, and the last digit of the logits.
    """
    noise = {width: Noise() for width in widths}
    rounding = 0.0
    for text in texts:
        single, read = target.new_cache(), target.new_cache()
        wide = {width: target.new_cache() for width in widths}
        for start in range(0, len(text), _PIECE):
            piece = mx.array([list(text[start : start + _PIECE])])
            rows = [
                target.forward(piece[:, at : at + 1], single, rows=1).logits[0]
                for at in range(piece.shape[1])
            ]
            plain = mx.concatenate(rows).astype(mx.float32)  # [n, V]
            mx.eval(plain, single.arrays)
            rounding = max(rounding, _rounding(plain, target.forward(piece, read).logits[0]))
            mx.eval(read.arrays)
            for width, cache in wide.items():
                step = 1 + width
                for at in range(0, piece.shape[1], step):
                    tokens = piece[:, at : at + step]
                    output = target.verify(tokens, cache)
                    target.rollback(cache, to=tokens.shape[1])
                    _compare(noise[width], plain[at : at + step], output.logits[0])
    for each in noise.values():
        each.rounding = _SLACK * rounding
    return noise


def margin(logits: mx.array) -> float:
    """Between the two best of [V]."""
    second, best = sorted(np.array(mx.topk(logits.astype(mx.float32), 2)).tolist())
    return float(best - second)


def _rounding(plain: mx.array, read: mx.array) -> float:
    """The largest difference between logits [n, V], or the last digit of the largest logit."""
    digit = mx.finfo(read.dtype).eps * mx.max(mx.abs(plain))
    apart = mx.max(mx.abs(plain - read.astype(mx.float32)))
    return float(np.array(mx.maximum(apart, digit)))


def _compare(noise: Noise, plain: mx.array, wide: mx.array) -> None:
    wide = wide.astype(mx.float32)
    largest = float(np.array(mx.max(mx.abs(plain - wide))))
    same = np.array(mx.argmax(plain, axis=-1) == mx.argmax(wide, axis=-1))
    noise.positions += len(same)
    noise.agreeing += int(same.sum())
    noise.largest = max(noise.largest, largest)
    noise.margins += [margin(plain[int(row)]) for row in np.flatnonzero(~same)]
