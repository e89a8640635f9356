"""Folders of a training run (AngelSpec's): which checkpoint they mean, and whether it can be read.

A run keeps `iter_0000100/model/` folders and notes the best in `best_checkpointed_iteration.txt`; its
cleanup may delete the one that the note names.
"""

from __future__ import annotations

import re
from pathlib import Path

from localspec.errors import CheckpointRefused

_BEST = "best_checkpointed_iteration.txt"
_EXPORT = "export it to a folder with config.json first, with AngelSpec's tools/convert_to_hf.py"


def exported(source: Path) -> Path:
    """The folder or file to read: of a training run, the checkpoint that it calls best.

    Raises:
        CheckpointRefused: the best checkpoint is gone, or it is sharded as only training reads it.
    """
    if (source / "config.json").exists():
        return source
    best = source / _BEST
    if best.is_file():
        with best.open(encoding="ascii", errors="replace") as file:
            text = file.read(32).strip()
        if not re.fullmatch(r"\d{1,9}", text):
            raise CheckpointRefused(f"{best} must hold the number of an iteration, not {text!r}")
        source = source / f"iter_{int(text):07d}"
        if not source.is_dir():
            raise CheckpointRefused(
                f"{best} names {source.name}, which is not there; it may have been deleted, and "
                "another checkpoint would not be the best: name one yourself"
            )
        if (source / "config.json").exists():
            return source
    for folder in (source, source / "model"):
        if (folder / ".metadata").exists() or any(folder.glob("*.distcp")):
            raise CheckpointRefused(f"{source} is a checkpoint for training; {_EXPORT}")
    return source
