"""Where measured costs of rounds are kept: a file for each machine, MLX version, target and drafter."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.folders import cache_dir

_VERSION = 1


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """What a profile is of; another of any of them is another profile.

    Attributes:
        chip, device: the machine, `gpu` or `cpu`.
        mlx: its version.
        target, drafter: fingerprints of their files, which tell quantisations too; a drafter without
            files goes by its name.
    """

    chip: str
    device: str
    mlx: str
    target: str
    drafter: str

    @property
    def path(self) -> Path:
        whole = repr((_VERSION, self.chip, self.device, self.mlx, self.target, self.drafter))
        name = hashlib.sha256(whole.encode()).hexdigest()[:24]
        return cache_dir() / "profiles" / f"{name}.json"


def read(key: ProfileKey) -> dict[str, Any] | None:
    """The profile as it was written; None: there is none that can be read."""
    try:
        value = json.loads(key.path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write(key: ProfileKey, profile: dict[str, Any]) -> Path:
    """Keep a profile, whole or not at all; returns where."""
    path = key.path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(profile, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    return path
