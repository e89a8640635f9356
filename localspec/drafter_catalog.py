"""A drafter's name to a folder in localspec's form; foreign checkpoints are imported once.

Names: a bundled one, a folder (converted or not), a file of weights, or a Hub id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localspec import catalog, hub
from localspec.converters.convert import translate, write
from localspec.converters.foreign import Options, TargetFacts
from localspec.converters.public import drafters_for
from localspec.errors import CheckpointRefused, ModelNotFound, reason
from localspec.folders import cache_dir
from localspec.models.load import CONFIG_FILE
from localspec.provenance import CHECKPOINTS, trained_for, trained_for_model

Notify = Callable[[str], None]

_IMPORT_VERSION = 1
_BUNDLED = Path(__file__).parent / "bundled"
_PREFERENCE = ("eagle3", "dfly", "dspark", "dflash", "dflare", "mtp")
"""Bundled drafters, the one to prefer first: EAGLE-3 measured fastest, MTP's head is the dearest."""


@dataclass(frozen=True, slots=True)
class InstalledDrafter:
    """A drafter that loads without the network.

    Attributes:
        name: a bundled one's, or its Hub id.
        architecture: of the six.
        path: its folder, or its checkpoint in the Hub's cache.
    """

    name: str
    architecture: str
    path: Path


def bundled_drafters(fingerprint: str) -> list[InstalledDrafter]:
    """Drafters that come with localspec and were trained for a target; the one to prefer first.

    Args:
        fingerprint: the target's, as `provenance.fingerprint` gives it.
    """
    return [found for found in _bundled() if trained_for(found.path) == fingerprint]


def bundled_names(model: str) -> list[str]:
    """Bundled drafters of a model, by the model's name alone; the one to prefer first."""
    return [found.name for found in _bundled() if trained_for_model(found.path) == model]


def _bundled() -> list[InstalledDrafter]:
    folders = [(name, _BUNDLED / name) for name in _PREFERENCE]
    return [InstalledDrafter(name, name, folder) for name, folder in folders if folder.is_dir()]


def installed_drafters(model: str) -> list[InstalledDrafter]:
    """Public drafters of a model that are here already; the one to prefer first. Fetches nothing.

    Args:
        model: its Hub id, or a folder of that name.
    """
    imported = _imported()
    found = []
    for drafter in drafters_for(model):
        path = hub.cached(drafter.name, hub.DRAFTER) or imported.get(drafter.name)
        if path is not None:
            found.append(InstalledDrafter(drafter.name, drafter.architecture, path))
    return found


def resolve_drafter(name: str, *, target: TargetFacts, notify: Notify | None = None) -> Path:
    """The folder of a drafter for this target, converted into the cache if need be.

    Args:
        name: a bundled one, a folder, a file of weights, or a Hub id (its cache first, the network
            second).
        target: what the drafter must fit.
        notify: told what takes long.

    Raises:
        ModelNotFound: nothing has this name.
        CheckpointRefused: it cannot be imported right.
        DrafterMismatch: it was made for another target.
    """
    if name in _PREFERENCE and (_BUNDLED / name).is_dir():
        return _BUNDLED / name
    if not (Path(name).expanduser().exists() or hub.is_id(name)):
        raise ModelNotFound(
            f"no drafter is called '{name}'; give none, ngram, auto, a bundled one "
            f"({', '.join(found.name for found in _bundled())}), a folder or a Hub id"
        )
    return import_once(find_checkpoint(name, notify=notify), name, target=target, notify=notify)


def import_once(
    source: Path, name: str, *, target: TargetFacts, notify: Notify | None = None
) -> Path:
    """A drafter's folder in localspec's form; arguments and errors as `resolve_drafter`.

    Args:
        source: where its files are.
        name: what it goes by.
    """
    if is_converted(source):
        return source
    if (source / CHECKPOINTS).is_dir():
        raise ModelNotFound(
            f"{name} holds a training run that has not ended; `localspec train` with --resume goes on "
            "with it"
        )
    short = name.rstrip("/").rpartition("/")[2]
    folder = _cache() / f"{short}-{_key(source, target)}"
    if (folder / CONFIG_FILE).is_file():
        return folder
    say = notify or (lambda note: None)
    try:
        with catalog.lock_import(folder):
            # Another process may have been at it.
            if (folder / CONFIG_FILE).is_file():
                return folder
            say(f"importing {name} (once)")
            converted = translate(source, target=target, options=Options(), name=short)
            for warning in converted.report.warnings:
                say(f"{name}: {warning}")
            _note(folder).write_text(json.dumps({"name": name}), encoding="utf-8")
            write(converted, folder)
    except OSError as error:
        raise CheckpointRefused(f"{folder} cannot be written: {reason(error)}") from error
    return folder


def find_checkpoint(name: str, *, notify: Notify | None = None) -> Path:
    """The folder or file of a name, converted or not; fetched from the Hub if it is a Hub id.

    Raises:
        ModelNotFound: nothing has this name, or it could not be fetched, with the reason.
    """
    path = Path(name).expanduser()
    if name and path.exists():
        return path.resolve()
    if hub.is_id(name):
        return hub.snapshot(name, hub.DRAFTER, notify=notify)
    raise ModelNotFound(
        f"'{name}' does not exist: it is no folder, no file and no Hub id (org/name)"
    )


def _imported() -> dict[str, Path]:
    """Imported drafters by the name they go by."""
    found = {}
    for note in sorted(_cache().glob("*.json")):
        folder = note.with_name(note.name.removesuffix(".json"))
        try:
            name = str(json.loads(note.read_text(encoding="utf-8"))["name"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if is_converted(folder):
            found[name] = folder
    return found


def _cache() -> Path:
    return cache_dir() / "drafters"


def _note(folder: Path) -> Path:
    """Beside an imported folder: the name it goes by."""
    return folder.with_name(f"{folder.name}.json")


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
