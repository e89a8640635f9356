"""How well a drafter drafts: the real loop on held-out prompts, by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.engine.generation import Generation
from localspec.engine.request import Request
from localspec.engine.target import Target
from localspec.models.drafter import Drafter


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A prompt's token ids and its kind."""

    prompt: tuple[int, ...]
    kind: str


@dataclass(slots=True)
class Accepted:
    """Committed tokens and rounds, by kind of prompt."""

    tokens: dict[str, int] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)

    @property
    def length(self) -> float:
        """Accepted length over all prompts."""
        return sum(self.tokens.values()) / max(1, sum(self.rounds.values()))

    def by_kind(self) -> dict[str, float]:
        return {kind: self.tokens[kind] / self.rounds[kind] for kind in sorted(self.tokens)}


def accepted_length(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[HeldOut],
    *,
    width: int,
    max_tokens: int,
    stop_ids: frozenset[int] = frozenset(),
) -> Accepted:
    """Generate greedily from each prompt at this width and count what each round committed."""
    accepted = Accepted()
    for number, held_out in enumerate(prompts):
        request = Request(
            prompt=held_out.prompt,
            max_tokens=max_tokens,
            seed=number,
            stop_ids=stop_ids,
            width=width,
        )
        generation = Generation(target, drafter, request)
        for _ in generation.run():
            pass
        kind, stats = held_out.kind, generation.stats
        accepted.tokens[kind] = accepted.tokens.get(kind, 0) + stats.generated_tokens
        accepted.rounds[kind] = accepted.rounds.get(kind, 0) + stats.rounds
    return accepted
