"""What a round costs: a table by width and context depth, kept true by the rounds themselves.

Costs are in seconds. The table is measured by `localspec profile`, or a guess of the right shape;
either way rounds correct it while they run, so that another program, a hot chip or a longer context
are noticed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

_FOLLOW = 0.15
"""How fast the scale of all costs follows the rounds."""
_REFINE = 0.08
"""How fast a width's own share follows them in the end; at first it is their mean."""
_OUTLIER = 1.6
"""One slow round (another program, a page fault) counts as no slower than this."""
_FLATTEST, _STEEPEST = 0.05, 5.0


@dataclass(frozen=True, slots=True)
class CostTable:
    """Measured costs.

    Attributes:
        depths: context lengths, rising, at least one.
        widths: rising from 0, at least two.
        draft: seconds to draft a width, [depths][widths]; of width 0 they are 0.
        verify: seconds of all else in a round of a width, [depths][widths]; of width 0 a plain step.
        plain: seconds of a step of plain decoding, [depths].
    """

    depths: tuple[int, ...]
    widths: tuple[int, ...]
    draft: tuple[tuple[float, ...], ...]
    verify: tuple[tuple[float, ...], ...]
    plain: tuple[float, ...]

    def draft_at(self, width: float, depth: int) -> float:
        return _between(
            self.depths, [_between(self.widths, row, width) for row in self.draft], depth
        )

    def verify_at(self, width: int, depth: int) -> float:
        return _between(
            self.depths, [_between(self.widths, row, width) for row in self.verify], depth
        )

    def plain_at(self, depth: int) -> float:
        return _between(self.depths, self.plain, depth)

    def best_rate(self, chance: float) -> float:
        """Tokens in the time of a plain step, at the best width, if each draft stands with a chance."""
        tokens, best = 1.0, 0.0
        for width in range(1, self.widths[-1] + 1):
            tokens += chance**width
            seconds = self.draft_at(width, 0) + self.verify_at(width, 0)
            best = max(best, tokens * self.plain_at(0) / seconds)
        return best


def cost_table(profile: dict[str, Any]) -> CostTable:
    """From a profile as `localspec profile` keeps it.

    Raises:
        ValueError: it is not one.
    """
    try:
        table = _cost_table(profile)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("this is no profile") from error
    rows = [*table.draft, *table.verify]
    costs = [seconds for row in [*rows, table.plain] for seconds in row]
    if (
        len(table.widths) < 2
        or not table.depths
        or any(len(row) != len(table.widths) for row in rows)
        or not all(math.isfinite(seconds) and seconds >= 0 for seconds in costs)
    ):
        raise ValueError("this is no profile")
    return table


def _cost_table(profile: dict[str, Any]) -> CostTable:
    rows = profile["depths"]

    def medians(part: str) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(float(each["median"]) for each in row[part]) for row in rows)

    return CostTable(
        depths=tuple(int(row["depth"]) for row in rows),
        widths=tuple(int(width) for width in profile["widths"]),
        draft=medians("draft"),
        verify=medians("verify"),
        plain=tuple(float(row["plain"]["median"]) for row in rows),
    )


GUESS = CostTable(
    depths=(0,),
    widths=(0, 1, 16),
    draft=((0.0, 0.15, 0.6),),
    verify=((1.02, 1.1, 2.6),),
    plain=(1.0,),
)
"""Before anything is measured: a shape that is right within a factor on most machines."""


@dataclass(slots=True)
class _Mean:
    """A running mean that takes no outlier at its word."""

    value: float
    count: int = 0

    def learn(self, value: float) -> None:
        self.count += 1
        most = (_OUTLIER if self.count > 1 else 2 * _OUTLIER) * self.value
        self.value += max(_REFINE, 1 / self.count) * (min(value, most) - self.value)


@dataclass(slots=True)
class _Curve:
    """A part of a round by width: the table's values, times a factor for each width that was seen.

    Attributes:
        factors: of seen widths.
    """

    factors: dict[int, _Mean] = field(default_factory=dict)

    def at(self, width: int, table: Callable[[int], float]) -> float:
        """Between seen widths their factors are blended; beyond them their slope goes on."""
        seen = sorted(self.factors)
        if not seen:
            return table(width)
        if seen[0] <= width <= seen[-1]:
            factor = _between(seen, [self.factors[w].value for w in seen], width)
            return table(width) * factor
        low, high = seen[0], seen[-1]
        at_low, at_high = (table(w) * self.factors[w].value for w in (low, high))
        slope = self.factors[high].value
        if low < high and table(high) != table(low):
            slope = (at_high - at_low) / (table(high) - table(low))
            slope = min(max(slope, _FLATTEST), _STEEPEST)
        nearest, value = (low, at_low) if width < low else (high, at_high)
        return max(value + slope * (table(width) - table(nearest)), _FLATTEST * value)

    def learn(self, width: int, factor: float, expected: float) -> None:
        if width not in self.factors:
            self.factors[width] = _Mean(expected)
        self.factors[width].learn(factor)


@dataclass(slots=True)
class Costs:
    """A table with corrections learnt from rounds.

    Attributes:
        table: where the shape comes from.
    """

    table: CostTable = GUESS
    _scale: float | None = None
    _draft: _Curve = field(default_factory=_Curve)
    _verify: _Curve = field(default_factory=_Curve)

    @property
    def know_plain(self) -> bool:
        """Whether plain steps have been timed in rounds."""
        return 0 in self._verify.factors

    def draft(self, width: int, depth: int) -> float:
        """Seconds to draft so many tokens."""
        if not width:
            return 0.0
        return self._unit * self._draft.at(width, lambda w: self.table.draft_at(w, depth))

    def verify(self, width: int, depth: int) -> float:
        """Seconds of the rest of a round; of width 0 a step that had looked at drafts."""
        return self._unit * self._verify.at(width, lambda w: self.table.verify_at(w, depth))

    def plain(self, depth: int) -> float:
        """Seconds of a plain step, as without a drafter."""
        return self.verify(0, depth) * self._lead(depth)

    def learn_draft(self, width: int, depth: int, seconds: float) -> None:
        if self._scale is not None and width:
            shape = self._unit * self.table.draft_at(width, depth)
            self._draft.learn(width, seconds / shape, self.draft(width, depth) / shape)

    def learn_verify(self, width: int, depth: int, seconds: float) -> None:
        """Also corrects the scale of everything: every round has this part."""
        self._follow(self._unit * seconds / self.verify(width, depth))
        shape = self._unit * self.table.verify_at(width, depth)
        self._verify.learn(width, seconds / shape, self.verify(width, depth) / shape)

    def learn_plain(self, depth: int, seconds: float) -> None:
        self.learn_verify(0, depth, seconds / self._lead(depth))

    def _lead(self, depth: int) -> float:
        """What a plain step takes of one that waits for a decision."""
        return self.table.plain_at(depth) / self.table.verify_at(0, depth)

    @property
    def _unit(self) -> float:
        return 1.0 if self._scale is None else self._scale

    def _follow(self, scale: float) -> None:
        if self._scale is None:
            self._scale = scale
        else:
            self._scale += _FOLLOW * (min(scale, _OUTLIER * self._scale) - self._scale)


def _between(places: Sequence[int], values: Sequence[float], at: float) -> float:
    """On the straight lines between points; level before the first, sloping on after the last."""
    if len(places) == 1 or at <= places[0]:
        return values[0]
    right = min(bisect_right(places, at), len(places) - 1)
    left = right - 1
    slope = (values[right] - values[left]) / (places[right] - places[left])
    if at > places[-1]:
        # Nothing gets cheaper for ever, whatever the noise of two measurements says.
        return values[-1] + max(slope, 0.0) * (at - places[-1])
    return values[left] + slope * (at - places[left])
