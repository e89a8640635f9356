"""Which drafter plays, by evidence: tokens in the time of a plain step, by kind of text.

An arm's estimate on a kind leans on what it does on all kinds until the kind has evidence of its own,
and before that on what its card promises, as far as cards have held here. The arm with the highest
upper bound plays, so that arms are tried as long as they might be the best, and no longer. Old evidence
fades. Plain decoding's rate is 1 by definition and is never tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from localspec.engine.costs import CostTable

PLAIN_RATE = 1.0
_TEXT = 96.0
"""Plain steps of evidence that no single answer exceeds."""
_LEAN = 12.0
"""Plain steps of a kind's own evidence that weigh as much as the evidence of all kinds."""
_GUESSED, _PROMISED = 6.0, 36.0
"""Plain steps that a first guess weighs: out of the blue; by a card's acceptance and measured costs."""
_TRUSTED = 24.0
"""Plain steps of evidence that trust in cards weighs."""
_BOUND = 0.5
"""The upper bound is so far above the rate, over the root of the plain steps that are known of."""
_EASIER = 1.15
"""Editing, for a drafter, than what it drafts best otherwise."""
_FADE = 0.9995
"""Each plain step of evidence leaves this of what was before."""
_EVIDENCE_FADE = 0.05
"""Evidence of other kinds counts so much for how sure an estimate is."""
_MARGIN = 0.1
"""A switch within an answer must promise so much more, for it costs a prefill."""


@dataclass(slots=True)
class Stretch:
    """What an arm gave in one answer: tokens, and the plain steps' time that they took."""

    tokens: float = 0.0
    steps: float = 0.0

    @property
    def weight(self) -> float:
        """Of its tokens and steps, as evidence: texts differ, and a long one is still but one."""
        return _TEXT / (_TEXT + self.steps)


@dataclass(slots=True)
class Tally:
    """Tokens and the plain steps' time that they took, fading."""

    tokens: float = 0.0
    steps: float = 0.0

    def add(self, tokens: float, steps: float) -> None:
        kept = _FADE**steps
        self.tokens = self.tokens * kept + tokens
        self.steps = self.steps * kept + steps


@dataclass(slots=True)
class Beliefs:
    """What is believed of one arm.

    Attributes:
        guess: its rate before anything was seen.
        guesses: likewise on the kinds of text of which more is known.
        weight: plain steps that they weigh.
        whole: over all kinds.
        kinds: by kind of text.
    """

    guess: float = 1.3
    guesses: Mapping[str, float] = field(default_factory=dict)
    weight: float = _GUESSED
    whole: Tally = field(default_factory=Tally)
    kinds: dict[str, Tally] = field(default_factory=dict)

    def expect(self, claimed: Mapping[str, float], costs: CostTable) -> None:
        """Guess by the chance that a draft stands, by kind and overall (""), and what rounds cost."""
        rates = {kind: costs.best_rate(chance) for kind, chance in claimed.items()}
        self.guess, self.weight = rates[""], _PROMISED
        self.guesses = rates | {"editing": _EASIER * max(rates.values())}

    def add(self, kind: str, tokens: float, steps: float) -> None:
        self.whole.add(tokens, steps)
        self.kinds.setdefault(kind, Tally()).add(tokens, steps)

    @property
    def has_card(self) -> bool:
        return self.weight == _PROMISED

    def rate(self, kind: str, trust: float = 1.0) -> float:
        """Tokens in the time of a plain step.

        Args:
            trust: in what the card promises.
        """
        guess = trust * self.guess if self.has_card else self.guess
        overall = (self.whole.tokens + self.weight * guess) / (self.whole.steps + self.weight)
        overall *= self.guesses.get(kind, self.guess) / self.guess
        own = self.kinds.get(kind, Tally())
        return (own.tokens + _LEAN * overall) / (own.steps + _LEAN)

    def bound(self, kind: str, trust: float = 1.0) -> float:
        """What it might be at best."""
        own = self.kinds.get(kind, Tally()).steps
        steps = own + _EVIDENCE_FADE * (self.whole.steps - own)
        return self.rate(kind, trust) + _BOUND / math.sqrt(steps + self.weight)


@dataclass(slots=True)
class Bandit:
    """Beliefs about arms by name; an arm that is not among them is plain decoding."""

    arms: dict[str, Beliefs]

    def trust(self, of: str) -> float:
        """In the card of an arm: what the others gave over what theirs promised, for all err alike."""
        came = promised = _TRUSTED
        for name, arm in self.arms.items():
            if not arm.has_card or name == of:
                continue
            for kind, tally in arm.kinds.items():
                came += tally.tokens
                promised += tally.steps * arm.guesses.get(kind, arm.guess)
        return came / promised

    def choose(
        self,
        kind: str,
        among: Sequence[str] | None = None,
        *,
        playing: str | None = None,
        plain: bool = True,
    ) -> str | None:
        """The arm to play; None: plain decoding.

        Args:
            among: arms that can be had now; None: all.
            playing: the arm that plays now, in the middle of an answer: another must be better by more
                than its prefill may cost, and is not merely tried.
            plain: plain decoding may be chosen.
        """
        names = list(self.arms) if among is None else list(among)
        if playing is not None:
            rates = {name: self.rate(name, kind) for name in {*names, playing}}
            best = max(names, key=lambda name: rates[name])
            return best if rates[best] > rates[playing] + _MARGIN else playing
        if not names:
            return None
        bounds = {name: self.bound(name, kind) for name in names}
        best = max(names, key=lambda name: bounds[name])
        return None if plain and bounds[best] <= PLAIN_RATE else best

    def relieve(self, kind: str, among: Sequence[str], parked: str) -> str:
        """Who plays on in an answer in which an arm gave up: it, or one that may well do better.

        Args:
            among: arms that can be had now.
            parked: that arm; it goes on looking whether the text has become easier.
        """
        others = [name for name in among if name != parked]
        if not others:
            return parked
        bounds = {name: self.bound(name, kind) for name in among}
        best = max(others, key=lambda name: bounds[name])
        least = max(PLAIN_RATE, self.bound(parked, kind)) + _MARGIN
        return best if bounds[best] > least else parked

    def learn(
        self, name: str, kind: str, tokens: float, steps: float, so_far: Stretch | None = None
    ) -> None:
        """Take in what an arm gave.

        Args:
            so_far: in the same answer; this is added to it.
        """
        text = so_far or Stretch()
        before = text.weight
        known = before * text.tokens, before * text.steps
        text.tokens += tokens
        text.steps += steps
        now = text.weight * text.tokens, text.weight * text.steps
        self.arms[name].add(kind, now[0] - known[0], now[1] - known[1])

    def rate(self, name: str, kind: str) -> float:
        """Tokens of an arm in the time of a plain step."""
        return self.arms[name].rate(kind, self.trust(name))

    def bound(self, name: str, kind: str) -> float:
        """What it might be at best."""
        return self.arms[name].bound(kind, self.trust(name))
