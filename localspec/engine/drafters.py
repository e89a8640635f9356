"""From a drafter's name to a drafter bound to a target."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from localspec.converters.foreign import TargetFacts
from localspec.drafter_catalog import resolve_drafter
from localspec.engine.precision import to_float32
from localspec.engine.target import Target
from localspec.models.drafter import Drafter
from localspec.models.load import load
from localspec.models.ngram import NgramDrafter

NONE = "none"
AUTO = "auto"
NGRAM = "ngram"


def make_drafter(
    name: str, target: Target, *, notify: Callable[[str], None] | None = None
) -> Drafter | None:
    """The drafter of that name, bound to the target; None decodes plainly.

    Args:
        name: `none`, `ngram`, `auto` (n-gram), a folder (converted or not) or a Hub id.
        notify: told what takes long.

    Raises:
        ModelNotFound: nothing has that name.
        CheckpointRefused: it cannot be imported right.
        DrafterMismatch: it was made for another target.
    """
    if name == NONE:
        return None
    if name in (NGRAM, AUTO):
        return NgramDrafter()
    facts = TargetFacts(target.hidden_size, target.vocab_size, target.num_layers)
    drafter = load(resolve_drafter(name, target=facts, notify=notify))
    if mx.default_device() == mx.Device(mx.cpu):
        to_float32(drafter)
    drafter.bind(target)
    return drafter
