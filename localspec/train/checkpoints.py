"""Checkpoints of a run: written whole or not at all, the best one never deleted.

A checkpoint is a folder `step-N`, which appears by one rename. `state.json` names the latest and the
best one and is replaced atomically, after the folders it names are there and before any is deleted.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from localspec.errors import TrainingError, reason
from localspec.train.corpus import write_atomically

_STATE = "state.json"
_ARRAYS = "arrays.safetensors"
_VALUES = "values.json"


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: made if need be.

    Raises:
        TrainingError: the pointers are broken, or lead to no checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state: dict[str, Any] = {"latest": None, "best": None, "best_score": None}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / _STATE).exists():
                self._state.update(json.loads((folder / _STATE).read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise TrainingError(f"{folder / _STATE} is broken: {reason(error)}") from error
        for role in ("latest", "best"):
            name = self._state[role]
            if name is not None and not (folder / name / _VALUES).is_file():
                raise TrainingError(
                    f"{folder / _STATE} calls {name} the {role} checkpoint, but it is not there"
                )

    @property
    def best_score(self) -> float | None:
        score = self._state["best_score"]
        return None if score is None else float(score)

    def save(
        self,
        step: int,
        arrays: Mapping[str, mx.array],
        values: Mapping[str, Any],
        score: float | None = None,
    ) -> None:
        """Write a checkpoint; the best so far if its score says so. Older ones but the best go.

        Raises:
            TrainingError: it cannot be written; those before it stay.
        """
        name = f"step-{step:08d}"
        scratch = self._folder / f".{name}"
        try:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            mx.save_safetensors(str(scratch / _ARRAYS), dict(arrays))
            write_atomically(scratch / _VALUES, json.dumps(values))
            with (scratch / _ARRAYS).open("rb") as file:
                os.fsync(file.fileno())
            if (self._folder / name).exists():
                # Written before by the same run; a pointer may lead to it.
                shutil.rmtree(scratch)
            else:
                scratch.rename(self._folder / name)
            state = {**self._state, "latest": name}
            if score is not None and (self.best_score is None or score > self.best_score):
                state |= {"best": name, "best_score": score}
            write_atomically(self._folder / _STATE, json.dumps(state))
        except (OSError, RuntimeError) as error:
            shutil.rmtree(scratch, ignore_errors=True)
            raise TrainingError(
                f"the checkpoint {name} cannot be written: {reason(error)}; the ones before it stay"
            ) from error
        self._state = state
        self._clean_up()

    def latest(self) -> tuple[dict[str, mx.array], dict[str, Any]] | None:
        """Arrays and values of the newest checkpoint; None: there is none."""
        return self._load(self._state["latest"])

    def best(self) -> tuple[dict[str, mx.array], dict[str, Any]] | None:
        """Those of the checkpoint with the highest score; None: none has one."""
        return self._load(self._state["best"])

    def _load(self, name: str | None) -> tuple[dict[str, mx.array], dict[str, Any]] | None:
        if name is None:
            return None
        path = self._folder / name
        try:
            arrays = mx.load(str(path / _ARRAYS))
            values = json.loads((path / _VALUES).read_text(encoding="utf-8"))
        except (OSError, RuntimeError, ValueError) as error:
            raise TrainingError(f"the checkpoint {path} cannot be read: {reason(error)}") from error
        assert isinstance(arrays, dict)
        return arrays, dict(values)

    def _clean_up(self) -> None:
        kept = {self._state["latest"], self._state["best"]}
        for path in self._folder.glob("step-*"):
            if path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)
