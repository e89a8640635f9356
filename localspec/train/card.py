"""What a trained drafter says of itself, for people and for the loader."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from localspec.errors import CheckpointRefused, reason
from localspec.provenance import TRAINING_FILE

CARD_FILE = "README.md"


def read_card(folder: Path) -> Card | None:
    """The card in a drafter's folder; None: localspec did not train it.

    Raises:
        CheckpointRefused: it is broken.
    """
    path = folder / TRAINING_FILE
    try:
        return Card(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointRefused(f"{path} is broken: {reason(error)}") from error


@dataclass(frozen=True, slots=True)
class Card:
    """How a drafter was trained.

    Attributes:
        architecture: of the drafter.
        target, target_fingerprint: the target's name, and what tells it from others.
        command: that made it.
        corpus_tokens: answered by the target.
        tokens, steps: trained on, repeats counted.
        objective: the loss.
        width: drafts a round in training and in the figures below.
        held_out_prompts: how many prompts the figures are from.
        accepted_length, accepted_length_by_kind: greedy, of the drafter as it is stored.
        curve: tokens trained on and accepted length on some of the held-out prompts, during training.
        origin: of the drafter that it was gone on from, the command and the tokens trained on by then;
            None: it was new.
    """

    architecture: str
    target: str
    target_fingerprint: str
    command: str
    corpus_tokens: int
    tokens: int
    steps: int
    objective: str
    width: int
    held_out_prompts: int
    accepted_length: float
    accepted_length_by_kind: dict[str, float]
    curve: list[tuple[int, float]]
    origin: dict[str, object] | None = None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def write(self, folder: Path) -> None:
        """Write the two files into a drafter's folder."""
        text = json.dumps(self.as_dict(), indent=2) + "\n"
        (folder / TRAINING_FILE).write_text(text, encoding="utf-8")
        (folder / CARD_FILE).write_text(self._prose(), encoding="utf-8")

    def _prose(self) -> str:
        kinds = [f"- {kind}: {x:.2f}" for kind, x in self.accepted_length_by_kind.items()]
        lines = [
            f"# {self.architecture} for {self.target}",
            "",
            f"Made for {self.target} by `{self.command}`.",
            "",
            *self._beginning(),
            f"- corpus: {self.corpus_tokens:,} tokens answered by the target",
            f"- trained on {self.tokens:,} tokens, repeats counted, in {self.steps:,} steps",
            f"- objective: {self.objective}",
            f"- target: {self.target_fingerprint}",
            "",
            f"Accepted length on {self.held_out_prompts} held-out prompts, greedy, {self.width} drafts "
            f"a round, weights as they are stored: {self.accepted_length:.2f}.",
            "",
            *kinds,
            "",
            "During training, on a part of those prompts, weights in full precision:",
            "",
            "| tokens trained on | accepted length |",
            "|---|---|",
            *[f"| {tokens:,} | {length:.2f} |" for tokens, length in self.curve],
            "",
        ]
        return "\n".join(lines)

    def _beginning(self) -> list[str]:
        if self.origin is None:
            return []
        return [
            f"- gone on from a drafter that `{self.origin['command']}` made, trained on "
            f"{self.origin['tokens']:,} tokens"
        ]
