"""What the panel shows of a reply, added up from its rounds; pure values, no Textual in here."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from localspec.engine.metrics import Stats
from localspec.tui.engine import Round

RECENT = 8
"""Rounds that "now" looks back on."""

_KEPT = 200


@dataclass(slots=True)
class Figures:
    """Figures of one reply.

    Attributes:
        stats: the engine's own figures.
        rounds: tokens committed by each of the last rounds.
        width: drafts that the last round asked for.
        parked: whether the last round was a plain step because drafting does not pay.
        arm: the drafter that `auto` had play the last round; None: none has yet, or there is but one.
        plain_speed: tokens a second of plain decoding here, as measured; None: not yet.
    """

    plain_speed: float | None = None
    stats: Stats = field(default_factory=Stats)
    rounds: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT))
    width: int = 0
    parked: bool = False
    arm: str | None = None

    def add(self, round: Round) -> None:
        """Count a round."""
        # A width of 0 does not tell: it may be a trial, or the last token before a limit.
        self.parked = round.stats.parked > self.stats.parked
        before, after = self.stats.arms, round.stats.arms
        self.arm = next((name for name in after if after[name] > before.get(name, 0)), None)
        self.stats = round.stats
        self.rounds.append(round.num_committed)
        self.width = round.width

    @property
    def accepted_now(self) -> float:
        """Tokens a round over the last rounds."""
        recent = list(self.rounds)[-RECENT:]
        return sum(recent) / len(recent) if recent else 0.0

    @property
    def ratio(self) -> float | None:
        """Speed relative to plain decoding; while that is not measured, an upper bound.

        A round takes at least as long as a plain step, so rounds a second are at most the plain speed.
        """
        if not self.stats.tokens_per_second:
            return None
        if self.plain_speed:
            return self.stats.tokens_per_second / self.plain_speed
        return self.stats.accepted_length

    @property
    def context_used(self) -> int:
        """Tokens of prompt and reply together."""
        return self.stats.prompt_tokens + self.stats.generated_tokens
