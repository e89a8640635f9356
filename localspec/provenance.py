"""Which target a trained drafter is for: what tells one target from another, and what a drafter says."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from localspec.errors import CheckpointRefused, reason

TRAINING_FILE = "training.json"
"""Beside a drafter that localspec trained: how, and for which target."""

CHECKPOINTS = "checkpoints"
"""In a drafter's folder, while it is trained."""

_SELF, _CHAT = "self", "chat"
"""What a target writes of itself is talk."""
_SAMPLE = 2**16
_FILES = ("config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json")


def fingerprint(folder: Path) -> str:
    """A digest of a target's folder.

    Of large files the size, the beginning, which holds the names and shapes of the tensors, and the end
    count; reading all of a large model would take longer than loading it.
    """
    digest = hashlib.sha256()
    weights = sorted(folder.glob("*.safetensors")) + sorted(folder.glob("*.gguf"))
    for path in [*(folder / name for name in _FILES), *weights]:
        if not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE))
            file.seek(max(0, size - _SAMPLE))
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def trained_for(folder: Path) -> str | None:
    """The fingerprint of the target that a drafter was trained for; None: its folder does not say.

    Raises:
        CheckpointRefused: the file that says so is broken.
    """
    return _said(folder, "target_fingerprint")


def trained_for_model(folder: Path) -> str | None:
    """Likewise, that target's name."""
    return _said(folder, "target")


def _said(folder: Path, key: str) -> str | None:
    path = folder / TRAINING_FILE
    try:
        value = json.loads(path.read_text(encoding="utf-8"))[key]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointRefused(f"{path} is broken: {reason(error)}") from error
    return str(value)


def claimed_acceptance(folder: Path) -> dict[str, float]:
    """The chance that a draft stands, by a trained drafter's card: by kind of text, and overall ("").

    The card has accepted lengths at a width; a chance is the one that gives such a length if it is
    the same at every position. Empty: the folder does not say.
    """
    try:
        card = json.loads((folder / TRAINING_FILE).read_text(encoding="utf-8"))
        width = int(card["width"])
        lengths = {
            _CHAT if kind == _SELF else str(kind): float(length)
            for kind, length in card["accepted_length_by_kind"].items()
        }
        lengths[""] = float(card["accepted_length"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {kind: _chance(length, width) for kind, length in lengths.items()}


def _chance(length: float, width: int) -> float:
    low, high = 0.0, 1.0
    for _ in range(30):
        chance = (low + high) / 2
        expected = sum(chance**position for position in range(width + 1))
        low, high = (chance, high) if expected < length else (low, chance)
    return min(max(low, 0.05), 0.95)
