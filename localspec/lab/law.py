"""Whether tokens were drawn from the laws that they should have been drawn from.

Each token of a sampled text has a law of its own, that of its prefix. Tokens are put into classes by how
likely they were (the likeliest, the second, …), and what was seen of each class is compared with what
its laws promise. The comparison is a chi-square with the exact covariance of draws from unequal laws;
with equal laws it is Pearson's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CLASSES = (1, 2, 4, 8, 16)
"""Ranks at which classes end: 1, 2, 3-4, 5-8, 9-16, the rest."""
LOTS = 8
ALARM = 1e-4
"""A p-value below this is a failure; chance alone gives it once in ten thousand tests."""
_FEWEST = 5.0
_POWER = 0.95
"""Of what is said to be noticed, so much is."""


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of a test.

    Attributes:
        samples: tokens that were looked at.
        statistic, degrees: of the chi-square.
        p_value: how often chance alone deviates as much.
        noticeable: the smallest share of probability moved to or from the likeliest tokens that so many
            samples make a failure, nineteen times in twenty.
    """

    samples: int
    statistic: float
    degrees: int
    p_value: float
    noticeable: float

    @property
    def passed(self) -> bool:
        return self.p_value >= ALARM

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "passed": self.passed}


@dataclass(slots=True)
class Draws:
    """Tokens by class: what came, and what its law promised.

    Attributes:
        seen: [n] the class of each token.
        promised: [n, classes] its law, by class.
        places: [n] where in its round each token stood, from 0.
        texts: [n] which text it is of; tokens of a text are in order.
        favour: [n] how much the drafter favours each token over the target, 0..2.
        favour_promised: [n, 3] its law, by that.
        lots: [n] the lot of each token's id.
        lots_promised: [n, lots] its law, by that.
    """

    seen: Ints
    promised: Floats
    places: Ints
    texts: Ints
    favour: Ints
    favour_promised: Floats
    lots: Ints
    lots_promised: Floats


def classify(law: Floats, token: int) -> tuple[int, Floats]:
    """The class of a token [V] by its rank, and the probability of every class."""
    most = min(CLASSES[-1], len(law))
    best = np.sort(np.partition(law, len(law) - most)[-most:])[::-1]
    sums = np.concatenate([[0.0], np.cumsum(best)])
    ends = np.minimum([0, *CLASSES], most)
    promised = np.append(np.diff(sums[ends]), max(0.0, 1.0 - sums[-1]))
    # Of equally likely tokens the first comes first.
    rank = int((law > law[token]).sum() + (law[:token] == law[token]).sum())
    return int(np.searchsorted(CLASSES, rank, side="right")), promised


def favours(law: Floats, q: Floats | None, token: int) -> tuple[int, Floats]:
    """The class of a token by the drafter's law against the target's [V], and that of every class.

    Classes: at most as likely, up to twice as likely, more likely; without a law all are the first.
    """
    if q is None:
        return 0, np.array([1.0, 0.0, 0.0])
    classes = (q > law).astype(np.int64) + (q > 2 * law)
    return int(classes[token]), np.bincount(classes, weights=law, minlength=3).astype(np.float64)


def lot(law: Floats, token: int) -> tuple[int, Floats]:
    """The class of a token by its id alone, which has nothing to do with how likely it is."""
    lots = np.arange(len(law)) % LOTS
    return token % LOTS, np.bincount(lots, weights=law, minlength=LOTS).astype(np.float64)


def check_tokens(draws: Draws) -> Check:
    """Of every token alone."""
    return _check(draws, np.zeros(len(draws.seen), dtype=np.int64))


def check_drafter(draws: Draws) -> Check:
    """Whether tokens that the drafter favours came too often or too seldom, as most faults make them."""
    given = replace(draws, seen=draws.favour, promised=draws.favour_promised)
    return _check(given, np.zeros(len(draws.seen), dtype=np.int64))


def check_ids(draws: Draws) -> Check:
    """By lots of token ids."""
    given = replace(draws, seen=draws.lots, promised=draws.lots_promised)
    return _check(given, np.zeros(len(draws.seen), dtype=np.int64))


def check_places(draws: Draws) -> Check:
    """By the place in the round: what a first, second, … token of a round is."""
    return _check(draws, np.minimum(draws.places, 3))


def check_joint(draws: Draws) -> Check:
    """The joint law of three tokens: what follows each pair of classes."""
    coarse = np.minimum(draws.seen, 2)
    groups = np.full(len(coarse), -1)
    same = (draws.texts[2:] == draws.texts[:-2]) & (draws.texts[2:] == draws.texts[1:-1])
    groups[2:] = np.where(same, 3 * coarse[:-2] + coarse[1:-1], -1)
    return _check(draws, groups)


def _check(draws: Draws, groups: Ints) -> Check:
    """Chi-square within each group of tokens, summed; group -1 is left out.

    A group must be known before its token is drawn; then what is summed over a text are the differences
    of a martingale, and groups do not disturb each other.
    """
    statistic, degrees = 0.0, 0
    for group in np.unique(groups[groups >= 0]):
        at = groups == group
        value, count = _chi_square(draws.seen[at], draws.promised[at])
        statistic, degrees = statistic + value, degrees + count
    used = groups >= 0
    size = int(used.sum())
    if not degrees:
        return Check(size, statistic, degrees, 1.0, 1.0)
    from scipy.stats import chi2

    p_value = float(chi2.sf(statistic, degrees))
    first = draws.promised[used, 0]
    spread = float(np.sqrt((first * (1 - first)).sum()))
    return Check(size, statistic, degrees, p_value, min(1.0, _deviations(degrees) * spread / size))


def _deviations(degrees: int) -> float:
    """How many standard deviations a shift must be for the chi-square to fail with `_POWER`."""
    from scipy.optimize import brentq
    from scipy.stats import chi2, ncx2

    limit = chi2.isf(ALARM, degrees)
    missing = brentq(lambda shift: ncx2.sf(limit, degrees, shift**2) - _POWER, 1e-3, 1e3)
    return float(missing)


def _chi_square(seen: Ints, promised: Floats) -> tuple[float, int]:
    """Statistic and degrees of freedom, classes of too few expected tokens pooled."""
    expected = promised.sum(axis=0)
    pools: list[list[int]] = [[]]
    for index in range(len(expected)):
        pools[-1].append(index)
        if expected[pools[-1]].sum() >= _FEWEST:
            pools.append([])
    rest = pools.pop()
    if pools:
        pools[-1] += rest
    if len(pools) < 2:
        return 0.0, 0
    laws = np.stack([promised[:, pool].sum(axis=1) for pool in pools], axis=1)
    counts = np.array([np.isin(seen, pool).sum() for pool in pools])
    off = (counts - laws.sum(axis=0))[:-1]
    laws = laws[:, :-1]
    covariance = np.diag(laws.sum(axis=0)) - laws.T @ laws
    inverse = np.linalg.pinv(covariance, rcond=1e-9, hermitian=True)
    return float(off @ inverse @ off), int(np.linalg.matrix_rank(covariance, tol=1e-9))


def join(parts: Sequence[Draws]) -> Draws:
    """Several texts as one sample."""
    names = [field.name for field in fields(Draws)]
    return Draws(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    )
