"""Plain decoding against the drafter: what was measured, and what it comes to. No Textual in here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from localspec.engine.metrics import Stats
from localspec.sessions import StoredToken
from localspec.tui.engine import Ended, Round
from localspec.tui.settings import Settings
from localspec.tui.turn import stored

_MAX_TOKENS = 300
_SEED = 1


@dataclass(slots=True)
class Lap:
    """One run, alone on the machine.

    Attributes:
        rounds: seconds since the start of the request, the tokens that came then, and the figures.
        ended: whether it is over.
    """

    rounds: list[tuple[float, list[StoredToken], Stats]] = field(default_factory=list)
    ended: bool = False

    def add(self, event: Round | Ended) -> None:
        """Take in an event of the run."""
        stats = event.stats
        tokens = event.tokens if isinstance(event, Round) else event.rest
        if tokens or isinstance(event, Round):
            self.rounds.append((stats.prefill_s + stats.decode_s, stored(tokens), stats))
        self.ended = self.ended or isinstance(event, Ended)

    def until(self, seconds: float, start: int) -> int:
        """How many rounds there were after so many seconds, counted from round `start` on."""
        while start < len(self.rounds) and self.rounds[start][0] <= seconds:
            start += 1
        return start

    def between(self, start: int, end: int) -> tuple[list[StoredToken], Stats]:
        """The tokens of rounds `start` to before `end`, and the figures after them."""
        rounds = self.rounds[start:end]
        return [token for _, tokens, _ in rounds for token in tokens], rounds[-1][2]

    @property
    def text(self) -> str:
        return "".join(text for _, tokens, _ in self.rounds for text, _, _ in tokens)

    @property
    def stats(self) -> Stats:
        return self.rounds[-1][2] if self.rounds else Stats()


def conditions(settings: Settings) -> Settings:
    """Under which all run: a limit and a seed."""
    limit = min(settings.max_tokens or _MAX_TOKENS, _MAX_TOKENS)
    return replace(
        settings, max_tokens=limit, seed=_SEED if settings.seed is None else settings.seed
    )


def verdict(drafter: str, drafted: Lap, plain: Lap) -> str:
    """The result in a sentence."""
    fast, base = drafted.stats.tokens_per_second, plain.stats.tokens_per_second
    if not fast or not base:
        return "There was nothing to compare."
    ratio = fast / base
    if ratio >= 1:
        speed = f"{drafter} is {ratio:.2f}x as fast: {fast:.1f} against {base:.1f} tok/s"
    else:
        speed = f"{drafter} does not pay here, {ratio:.2f}x: {fast:.1f} against {base:.1f} tok/s"
    if drafted.text == plain.text:
        return f"{speed}. Both texts are the same, character for character."
    same = next(
        (n for n, (a, b) in enumerate(zip(drafted.text, plain.text, strict=False)) if a != b),
        min(len(drafted.text), len(plain.text)),
    )
    return (
        f"{speed}. The texts part after {same} characters: tokens were nearly tied, or drawn anew."
    )
