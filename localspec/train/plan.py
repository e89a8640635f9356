"""What is asked of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from localspec.errors import TrainingError, UsageError, reason
from localspec.models.config import Architecture
from localspec.provenance import CHECKPOINTS
from localspec.train.prompts import CHATS
from localspec.train.rollouts import SELF

_BEGUN_BY = "command.txt"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to train.

    Attributes:
        architecture: of the drafter.
        model: the target's name.
        output: the drafter's folder; checkpoints lie beside the drafter in it.
        data: `self`, `chats`, files of prompts, or several of these.
        minutes: of the whole run, writing text included; or
        tokens: of the target's text, each trained on several times.
        num_layers, width: of the drafter; None: from the target's size, or as in `origin`.
        origin: a trained drafter to go on from, a bundled one or a folder; None: a new one.
        resume: go on with the run in `output`.
        seed: decides every choice.
    """

    architecture: Architecture
    model: str
    output: Path
    data: tuple[str, ...] = (SELF,)
    minutes: float | None = None
    tokens: int | None = None
    num_layers: int | None = None
    width: int | None = None
    origin: str | None = None
    resume: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.tokens is None):
            raise UsageError("give either minutes or tokens")
        for name in ("minutes", "tokens", "num_layers", "width"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name} must be more than 0, not {value}")
        if self.architecture in ("eagle3", "mtp") and self.num_layers not in (None, 1):
            raise UsageError(f"{self.architecture} drafters have one layer")
        if self.origin is not None and (self.num_layers, self.width) != (None, None):
            raise UsageError(
                "layers and width are those of the drafter to start from; leave them out"
            )

    @property
    def target(self) -> str:
        """The target's name as others know it: of a folder or file the last part alone."""
        return _name(self.model)

    @property
    def command(self) -> str:
        """What a user types for it; of files the names alone."""
        given: list[tuple[str, float | None]] = [
            ("--layers", self.num_layers),
            ("--width", self.width),
            ("--minutes", self.minutes),
            ("--tokens", self.tokens),
        ]
        data = [s if s in (SELF, CHATS) else Path(s).name for s in self.data]
        words = ["localspec train", self.architecture, "-m", self.target]
        if self.origin is not None:
            words.append(f"--from {_name(self.origin)}")
        words += [f"--data {source}" for source in data]
        words += [f"{option} {value}" for option, value in given if value is not None]
        return " ".join(words)

    def begin(self) -> None:
        """Make the folder of the checkpoints, before hours go into what could not be kept.

        Raises:
            TrainingError: it cannot be written.
        """
        folder = self.output / CHECKPOINTS
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _BEGUN_BY).write_text(self.command + "\n", encoding="utf-8")
        except OSError as error:
            raise TrainingError(f"{folder} cannot be written: {reason(error)}") from error


def _name(given: str) -> str:
    path = Path(given).expanduser()
    return path.resolve().name if path.exists() else given


def begun_by(output: Path) -> str | None:
    """The command that began the run in a drafter's folder; None: nothing says."""
    try:
        return (output / CHECKPOINTS / _BEGUN_BY).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
