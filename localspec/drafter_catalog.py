"""A drafter's name to a folder in localspec's form; foreign checkpoints are imported once.

Names: a folder (converted or not), a file of weights, or a Hub id.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

from localspec import catalog
from localspec.converters.convert import translate, write
from localspec.converters.foreign import Options, TargetFacts
from localspec.errors import CheckpointRefused, ModelNotFound
from localspec.models.load import CONFIG_FILE

Notify = Callable[[str], None]

_HUB_FILES = ["*.json", "*.safetensors", "*.bin", "*.pt"]
_IMPORT_VERSION = 1


def resolve_drafter(name: str, *, target: TargetFacts, notify: Notify | None = None) -> Path:
    """The folder of a drafter for this target, converted into the cache if need be.

    Args:
        name: a folder, a file of weights, or a Hub id (its cache first, the network second).
        target: what the drafter must fit.
        notify: told what takes long.

    Raises:
        ModelNotFound: nothing has this name.
        CheckpointRefused: it cannot be imported right.
        DrafterMismatch: it was made for another target.
    """
    source = find_checkpoint(name, notify=notify)
    if is_converted(source):
        return source
    folder = catalog.cache_dir() / "drafters" / f"{source.name}-{_key(source, target)}"
    if not (folder / CONFIG_FILE).is_file():
        if notify:
            notify(f"importing {name} (once)")
        converted = translate(
            source, target=target, options=Options(), name=name.rstrip("/").rpartition("/")[2]
        )
        if notify:
            for warning in converted.report.warnings:
                notify(f"{name}: {warning}")
        try:
            write(converted, folder)
        except OSError as error:
            # Another process may have been first.
            if not (folder / CONFIG_FILE).is_file():
                raise CheckpointRefused(f"{folder} cannot be written: {error}") from error
    return folder


def find_checkpoint(name: str, *, notify: Notify | None = None) -> Path:
    """The folder or file of a name, converted or not; fetched from the Hub if it is a Hub id.

    Raises:
        ModelNotFound: nothing has this name, or it could not be fetched, with the reason.
    """
    path = Path(name).expanduser()
    if path.exists():
        return path.resolve()
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return catalog.hub_snapshot(name, _HUB_FILES, lambda folder: None, notify=notify)
    raise ModelNotFound(
        f"no drafter is called '{name}'; give none, ngram, auto, a folder or a Hub id"
    )


def is_converted(source: Path) -> bool:
    """Whether a folder is in localspec's own form."""
    try:
        config = json.loads((source / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "format_version" in config and "architecture" in config


def _key(source: Path, target: TargetFacts) -> str:
    files = sorted(source.iterdir()) if source.is_dir() else [source, source.parent / CONFIG_FILE]
    states = [
        (file.name, file.stat().st_size, file.stat().st_mtime_ns)
        for file in files
        if file.is_file()
    ]
    whole = repr((_IMPORT_VERSION, str(source), states, target))
    return hashlib.sha256(whole.encode()).hexdigest()[:16]
