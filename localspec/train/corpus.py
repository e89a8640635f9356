"""A corpus of the target's own text on disk: token ids in append-only shards, with a manifest.

A shard is written whole, then named in the manifest, which is replaced atomically; what a killed
process leaves beside it is never read. The manifest says which target wrote the text.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from localspec.errors import TrainingError, reason

_MANIFEST = "manifest.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Rollout:
    """A prompt and the target's answer.

    Attributes:
        tokens: ids of both, the token that ended the answer included.
        prompt_length: how many of them are the prompt.
        kind: the prompt's.
        sampled: drawn at temperature 1; else the most likely tokens.
    """

    tokens: tuple[int, ...]
    prompt_length: int
    kind: str
    sampled: bool

    @property
    def num_answered(self) -> int:
        return len(self.tokens) - self.prompt_length


class Corpus:
    """Rollouts of one target.

    Args:
        folder: of the corpus; made if need be.
        target: identifies the target and its tokenizer.
        num_shards: only this many, the first ones, as a run that began with them saw the corpus;
            None: all. Such a corpus is for reading.

    Raises:
        TrainingError: the folder holds another target's text, or its manifest or a shard is broken.
    """

    def __init__(self, folder: Path, target: str, num_shards: int | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._manifest: dict[str, Any] = {"format": _FORMAT, "target": target, "shards": []}
        path = folder / _MANIFEST
        if path.exists():
            self._manifest = _read_manifest(path)
            if self._manifest["target"] != target:
                raise TrainingError(f"{folder} holds text of another target; choose another folder")
        self._frozen = num_shards is not None
        self._manifest["shards"] = self._manifest["shards"][:num_shards]
        self._rollouts = [r for shard in self._manifest["shards"] for r in self._read(shard)]

    def __len__(self) -> int:
        return len(self._rollouts)

    def __iter__(self) -> Iterator[Rollout]:
        return iter(self._rollouts)

    def __getitem__(self, index: int) -> Rollout:
        return self._rollouts[index]

    @property
    def num_answered(self) -> int:
        """Tokens that the target answered."""
        return sum(rollout.num_answered for rollout in self._rollouts)

    @property
    def num_shards(self) -> int:
        return len(self._manifest["shards"])

    def shards_with(self, num_answered: int) -> int:
        """How many shards, from the first on, hold so many answered tokens; all, if they do not."""
        rollouts = iter(self._rollouts)
        answered = 0
        for number, shard in enumerate(self._manifest["shards"], 1):
            answered += sum(r.num_answered for r in islice(rollouts, shard["rollouts"]))
            if answered >= num_answered:
                return number
        return self.num_shards

    @property
    def digest(self) -> str:
        """Of all shards, as the manifest names them."""
        return hashlib.sha256(json.dumps(self._manifest["shards"]).encode()).hexdigest()

    def append(self, rollouts: Sequence[Rollout]) -> None:
        """Add a shard.

        Raises:
            TrainingError: another run has added shards since this one read the corpus.
        """
        assert not self._frozen
        kinds = sorted({rollout.kind for rollout in rollouts})
        name = f"shard-{len(self._manifest['shards']):05d}.npz"
        path = self.folder / name
        if len(self._on_disk()) != self.num_shards:
            raise TrainingError(
                f"another run writes to {self.folder}; start again when it has ended"
            )
        with path.open("wb") as file:
            np.savez_compressed(
                file,
                tokens=np.array([t for r in rollouts for t in r.tokens], dtype=np.uint32),
                lengths=np.array([len(r.tokens) for r in rollouts], dtype=np.uint32),
                prompt_lengths=np.array([r.prompt_length for r in rollouts], dtype=np.uint32),
                kinds=np.array([kinds.index(r.kind) for r in rollouts], dtype=np.uint8),
                sampled=np.array([r.sampled for r in rollouts], dtype=np.bool_),
            )
            file.flush()
            os.fsync(file.fileno())
        entry = {
            "file": name,
            "sha256": _sha256(path),
            "rollouts": len(rollouts),
            "tokens": sum(len(r.tokens) for r in rollouts),
            "kinds": kinds,
        }
        self._manifest["shards"].append(entry)
        write_atomically(self.folder / _MANIFEST, json.dumps(self._manifest, indent=1))
        self._rollouts += rollouts

    def _on_disk(self) -> list[Any]:
        path = self.folder / _MANIFEST
        return list(_read_manifest(path)["shards"]) if path.exists() else []

    def _read(self, shard: dict[str, Any]) -> list[Rollout]:
        path = self.folder / shard["file"]
        if not path.is_file() or _sha256(path) != shard["sha256"]:
            raise TrainingError(f"{path} is not the shard that {_MANIFEST} names")
        with np.load(path, allow_pickle=False) as arrays:
            ends = np.cumsum(arrays["lengths"].astype(np.int64))
            starts = ends - arrays["lengths"]
            tokens = arrays["tokens"]
            return [
                Rollout(
                    tuple(tokens[start:end].tolist()),
                    int(length),
                    shard["kinds"][kind],
                    bool(drawn),
                )
                for start, end, length, kind, drawn in zip(
                    starts,
                    ends,
                    arrays["prompt_lengths"],
                    arrays["kinds"],
                    arrays["sampled"],
                    strict=True,
                )
            ]


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's text, or leave it as it was."""
    beside = path.with_name(path.name + ".new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] == _FORMAT and isinstance(manifest["target"], str):
            return dict(manifest)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise TrainingError(f"{path} is broken: {reason(error)}") from error
    raise TrainingError(f"{path} has another format; choose another folder")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
