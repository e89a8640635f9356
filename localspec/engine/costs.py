"""What a round costs: a table by width and context depth, kept true by the rounds themselves.

Costs are in seconds. The table is measured by `localspec profile`, or a guess of the right shape; either
way rounds correct it while they run, so that another program, a hot chip or a longer context are noticed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

_FOLLOW = 0.15
"""How fast the scale of all costs follows the rounds."""
_REFINE = 0.03
"""How fast a width's own share follows them in the end; at first it is their mean."""
_OUTLIER = 1.6
"""One slow round (another program, a page fault) counts as no slower than this."""


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

    def draft_at(self, width: int, depth: int) -> float:
        return _between(self.depths, [_between(self.widths, row, width) for row in self.draft], depth)

    def verify_at(self, width: int, depth: int) -> float:
        return _between(
            self.depths, [_between(self.widths, row, width) for row in self.verify], depth
        )

    def plain_at(self, depth: int) -> float:
        return _between(self.depths, self.plain, depth)


GUESS = CostTable(
    depths=(0,),
    widths=(0, 1, 16),
    draft=((0.0, 0.15, 0.6),),
    verify=((1.02, 1.1, 2.6),),
    plain=(1.0,),
)
"""Before anything is measured: a shape that is right within a factor on most machines."""


@dataclass(slots=True)
class _Share:
    """What a width costs more than the table says, as a factor, and how often that was seen."""

    factor: float
    count: int = 0

    def learn(self, factor: float) -> None:
        self.count += 1
        gain = max(_REFINE, 1 / (self.count + 1))
        self.factor += gain * (min(factor, _OUTLIER * self.factor) - self.factor)


@dataclass(slots=True)
class Costs:
    """A table with corrections learnt from rounds.

    Attributes:
        table: where the shape comes from.
    """

    table: CostTable = GUESS
    _scale: float | None = None
    _draft: dict[int, _Share] = field(default_factory=dict)
    _verify: dict[int, _Share] = field(default_factory=dict)
    _plain: _Share = field(default_factory=lambda: _Share(1.0))

    def draft(self, width: int, depth: int) -> float:
        """Seconds to draft so many tokens."""
        if not width:
            return 0.0
        return self._unit * self.table.draft_at(width, depth) * _factor(self._draft, width)

    def verify(self, width: int, depth: int) -> float:
        """Seconds of the rest of a round; of width 0 a step that had looked at drafts."""
        return self._unit * self.table.verify_at(width, depth) * _factor(self._verify, width)

    def plain(self, depth: int) -> float:
        """Seconds of a plain step, as without a drafter."""
        return self._unit * self.table.plain_at(depth) * self._plain.factor

    def learn_draft(self, width: int, depth: int, seconds: float) -> None:
        if self._scale is not None and width:
            shape = self._unit * self.table.draft_at(width, depth)
            _share(self._draft, width).learn(seconds / shape)

    def learn_verify(self, width: int, depth: int, seconds: float) -> None:
        """Also corrects the scale of everything: every round has this part."""
        shape = self.table.verify_at(width, depth)
        self._follow(seconds / (shape * _factor(self._verify, width)))
        _share(self._verify, width).learn(seconds / (self._unit * shape))

    def learn_plain(self, depth: int, seconds: float) -> None:
        shape = self.table.plain_at(depth)
        self._follow(seconds / (shape * self._plain.factor))
        self._plain.learn(seconds / (self._unit * shape))

    @property
    def _unit(self) -> float:
        return 1.0 if self._scale is None else self._scale

    def _follow(self, scale: float) -> None:
        if self._scale is None:
            self._scale = scale
        else:
            self._scale += _FOLLOW * (min(scale, _OUTLIER * self._scale) - self._scale)


def _share(known: dict[int, _Share], width: int) -> _Share:
    """Of a width; a new one begins with what its neighbours promise."""
    if width not in known:
        known[width] = _Share(_factor(known, width))
    return known[width]


def _factor(known: dict[int, _Share], width: int) -> float:
    """Of a width, or between those of its neighbours; level beyond them."""
    if width in known:
        return known[width].factor
    if not known:
        return 1.0
    widths = sorted(known)
    inside = min(max(width, widths[0]), widths[-1])
    return _between(widths, [known[w].factor for w in widths], inside)


def _between(places: Sequence[int], values: Sequence[float], at: int) -> float:
    """On the straight lines between points; level before the first, sloping on after the last."""
    if len(places) == 1 or at <= places[0]:
        return values[0]
    right = min(bisect_right(places, at), len(places) - 1)
    left = right - 1
    share = (at - places[left]) / (places[right] - places[left])
    return values[left] + share * (values[right] - values[left])
