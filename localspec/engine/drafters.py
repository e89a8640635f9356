"""From a drafter's name to a drafter bound to a target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx

from localspec.converters.foreign import TargetFacts
from localspec.drafter_catalog import import_once, installed_drafters, resolve_drafter
from localspec.engine.precision import to_float32
from localspec.engine.target import Target
from localspec.errors import CheckpointRefused, DrafterMismatch, UsageError
from localspec.models.drafter import Drafter
from localspec.models.load import load
from localspec.models.ngram import NgramDrafter

NONE = "none"
AUTO = "auto"
NGRAM = "ngram"


def make_drafter(
    name: str, target: Target, *, model: str = "", notify: Callable[[str], None] | None = None
) -> tuple[str, Drafter | None]:
    """A drafter's own name, and the drafter, bound to the target; None decodes plainly.

    Args:
        name: `none`, `ngram`, `auto`, a folder (converted or not) or a Hub id. `auto` is the first
            installed drafter that fits, else n-gram; it fetches nothing.
        model: the target's name, by which `auto` looks for drafters.
        notify: told what takes long.

    Raises:
        UsageError: the name is empty.
        ModelNotFound: nothing has that name.
        CheckpointRefused: it cannot be imported right.
        DrafterMismatch: it was made for another target.
    """
    if not name:
        raise UsageError(
            "the drafter's name is empty; give none, ngram, auto, a folder or a Hub id"
        )
    if name == NONE:
        return name, None
    if name == NGRAM:
        return name, NgramDrafter()
    facts = TargetFacts(target.hidden_size, target.vocab_size, target.num_layers)
    if name != AUTO:
        return name, _bound(resolve_drafter(name, target=facts, notify=notify), target)
    for found in installed_drafters(model):
        try:
            folder = import_once(found.path, found.name, target=facts, notify=notify)
            return found.name, _bound(folder, target)
        except (CheckpointRefused, DrafterMismatch) as error:
            if notify:
                notify(f"{found.name} is installed, but cannot be used: {error}")
    return NGRAM, NgramDrafter()


def _bound(folder: Path, target: Target) -> Drafter:
    drafter = load(folder)
    if mx.default_device() == mx.Device(mx.cpu):
        to_float32(drafter)
    drafter.bind(target)
    return drafter
