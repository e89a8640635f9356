"""From a drafter's name to a drafter bound to a target."""

from __future__ import annotations

from localspec.engine.target import Target
from localspec.errors import ModelNotFound
from localspec.models.drafter import Drafter
from localspec.models.ngram import NgramDrafter

NONE = "none"
AUTO = "auto"
NGRAM = "ngram"


def make_drafter(name: str, target: Target) -> Drafter | None:
    """The drafter of that name, bound to the target; None decodes plainly.

    Args:
        name: `none`, `ngram`, or `auto` (the best that fits; n-gram so far).

    Raises:
        ModelNotFound: nothing has that name.
        DrafterMismatch: it was made for another target.
    """
    if name == NONE:
        return None
    if name in (NGRAM, AUTO):
        drafter = NgramDrafter()
        drafter.bind(target)
        return drafter
    raise ModelNotFound(f"no drafter is called '{name}'; give none, ngram or auto")
