"""What tells one target from another: a digest of its configuration and of parts of its weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

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
