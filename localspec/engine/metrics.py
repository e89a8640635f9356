"""What a generation measured of itself; plain Python values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(slots=True)
class Stats:
    """Figures of one generation, kept up to date while it runs.

    Attributes:
        prompt_tokens: tokens in the prompt.
        cached_tokens: how many of them were not read again, from the prefix cache.
        generated_tokens: committed tokens.
        rounds: draft-verify rounds, plain steps among them.
        proposed: drafts that were verified.
        accepted: drafts that were committed.
        proposed_by_position: drafts verified at position 1, 2, … after the anchor.
        accepted_by_position: drafts committed at each position.
        widths: rounds by how many drafts they verified, from 0.
        drafted: drafts that were made; those not worth verifying were cut.
        parked: plain steps that were made because drafting did not pay.
        arms: rounds by the drafter that `auto` had play.
        draft_s: seconds of drafting, where the loop could tell them from the rest of the round.
        verify_s: seconds of the rest of rounds that verified drafts.
        prefill_s: seconds of reading the prompt.
        decode_s: seconds from then to the last committed token.
        time_to_first_token_s: seconds from the start of the request to the first committed token.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    proposed_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    drafted: int = 0
    parked: int = 0
    arms: dict[str, int] = field(default_factory=dict)
    draft_s: float = 0.0
    verify_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    time_to_first_token_s: float = 0.0

    def add_round(
        self,
        num_proposed: int,
        num_accepted: int,
        num_committed: int,
        *,
        num_drafted: int,
        parked: bool,
        draft_s: float,
        verify_s: float,
        arm: str | None = None,
    ) -> None:
        """Count a round; a draft cut off by a stop or a limit was not committed."""
        num_accepted = min(num_accepted, num_committed)
        self.rounds += 1
        self.proposed += num_proposed
        self.accepted += num_accepted
        self.generated_tokens += num_committed
        self.drafted += num_drafted
        self.parked += parked
        if arm is not None:
            self.arms[arm] = self.arms.get(arm, 0) + 1
        self.draft_s += draft_s
        self.verify_s += verify_s
        self.widths.extend([0] * (num_proposed + 1 - len(self.widths)))
        self.widths[num_proposed] += 1
        missing = num_proposed - len(self.proposed_by_position)
        self.proposed_by_position.extend([0] * missing)
        self.accepted_by_position.extend([0] * missing)
        for position in range(num_proposed):
            self.proposed_by_position[position] += 1
            self.accepted_by_position[position] += position < num_accepted

    def copy(self) -> Stats:
        return replace(
            self,
            proposed_by_position=list(self.proposed_by_position),
            accepted_by_position=list(self.accepted_by_position),
            widths=list(self.widths),
            arms=dict(self.arms),
        )

    @property
    def accepted_length(self) -> float:
        """Committed tokens a round, the bonus or correction included; 1.0 is plain decoding."""
        return self.generated_tokens / self.rounds if self.rounds else 0.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """Of the drafts verified at each position, the share committed."""
        pairs = zip(self.accepted_by_position, self.proposed_by_position, strict=True)
        return [accepted / proposed for accepted, proposed in pairs]

    @property
    def width(self) -> float:
        """Drafts verified a round."""
        return self.proposed / self.rounds if self.rounds else 0.0

    @property
    def parked_share(self) -> float:
        """Of the rounds, those made plainly because drafting did not pay."""
        return self.parked / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.generated_tokens / self.decode_s if self.decode_s else 0.0

    @property
    def prompt_tokens_per_second(self) -> float:
        """Of the tokens that had to be read."""
        read = self.prompt_tokens - self.cached_tokens
        return read / self.prefill_s if self.prefill_s else 0.0

    def as_dict(self) -> dict[str, object]:
        """The figures that `--json` prints."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "generated_tokens": self.generated_tokens,
            "rounds": self.rounds,
            "proposed": self.proposed,
            "accepted": self.accepted,
            "accepted_length": round(self.accepted_length, 4),
            "acceptance_by_position": [round(x, 4) for x in self.acceptance_by_position],
            "width": round(self.width, 4),
            "widths": list(self.widths),
            "drafted": self.drafted,
            "parked_share": round(self.parked_share, 4),
            "arms": dict(self.arms),
            "tokens_per_second": round(self.tokens_per_second, 3),
            "time_to_first_token_s": round(self.time_to_first_token_s, 4),
            "prompt_tokens_per_second": round(self.prompt_tokens_per_second, 3),
        }
