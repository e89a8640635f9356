"""From a drafter's name to a drafter bound to a target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx

from localspec import profiles
from localspec.converters.foreign import TargetFacts
from localspec.drafter_catalog import (
    InstalledDrafter,
    bundled_drafters,
    import_once,
    installed_drafters,
    resolve_drafter,
)
from localspec.engine.auto import Auto, MakeDrafter
from localspec.engine.bandit import Beliefs
from localspec.engine.costs import GUESS, Costs, CostTable, cost_table
from localspec.engine.machine import describe
from localspec.engine.precision import to_float32
from localspec.engine.target import Target
from localspec.engine.trial import trial_costs
from localspec.engine.width import Experience
from localspec.errors import UsageError
from localspec.models.drafter import Drafter
from localspec.models.load import load
from localspec.models.ngram import NgramDrafter
from localspec.profiles import ProfileKey
from localspec.provenance import claimed_acceptance, fingerprint, trained_for

NONE = "none"
AUTO = "auto"
NGRAM = "ngram"

_COPIES, _COPIES_EDITING = 1.15, 2.0
"""Rates to expect of n-gram drafts."""


class Chosen(NamedTuple):
    """A drafter's own name; the drafter, bound to its target, or None: plain decoding; its folder."""

    name: str
    drafter: Drafter | None
    folder: Path | None = None


def make_drafter(
    name: str,
    target: Target,
    *,
    model: str = "",
    folder: Path | None = None,
    notify: Callable[[str], None] | None = None,
) -> Chosen:
    """The drafter that a name stands for.

    Args:
        name: `none`, `ngram`, `auto`, a bundled one, a folder (converted or not) or a Hub id. `auto` is
            the bundled and installed ones that fit and n-gram, chosen among by what they give; it
            fetches nothing.
        model, folder: the target's name and files, by which `auto` looks for drafters.
        notify: told what takes long.

    Raises:
        UsageError: the name is empty.
        ModelNotFound: nothing has that name.
        CheckpointRefused: it cannot be imported right.
        DrafterMismatch: it was made for another target.
    """
    if not name:
        raise UsageError(
            "the drafter's name is empty; give none, ngram, auto, a bundled one, a folder or a Hub id"
        )
    if name == NONE:
        return Chosen(name, None)
    if name == NGRAM:
        return Chosen(name, NgramDrafter())
    facts = TargetFacts(target.hidden_size, target.vocab_size, target.num_layers)
    mark = None if folder is None else fingerprint(folder)
    if name != AUTO:
        files = resolve_drafter(name, target=facts, notify=notify)
        drafter = _bound(files, target)
        its = trained_for(files)
        if notify and mark is not None and its not in (None, mark):
            notify(f"{name} was trained for another target, so expect few of its drafts to stand")
        return Chosen(name, drafter, files)
    ngram = Chosen(NGRAM, NgramDrafter())
    here = fitting(model, mark)
    if not here:
        return ngram
    first = first_experience(ngram, mark, target, notify=notify)
    beliefs = {NGRAM: Beliefs(_COPIES, {"editing": _COPIES_EDITING})}
    loaders = {}
    for found in here:
        loaders[found.name] = _loader(found, target, facts, mark, first.costs.table, notify)
        beliefs[found.name] = promised(found)
    auto = Auto({NGRAM: (NgramDrafter(), first)}, loaders, beliefs, notify)
    return Chosen(AUTO, auto) if auto.names != [NGRAM] else ngram


def fitting(model: str, mark: str | None) -> list[InstalledDrafter]:
    """Drafters of a target that are here, bundled or installed; the one to prefer first.

    Args:
        model: the target's name.
        mark: its fingerprint; None: it has no files.
    """
    return [*([] if mark is None else bundled_drafters(mark)), *installed_drafters(model)]


def _loader(
    found: InstalledDrafter,
    target: Target,
    facts: TargetFacts,
    mark: str | None,
    passes: CostTable,
    notify: Callable[[str], None] | None,
) -> MakeDrafter:
    def make() -> tuple[Drafter, Experience]:
        files = import_once(found.path, found.name, target=facts, notify=notify)
        chosen = Chosen(found.name, _bound(files, target), files)
        assert chosen.drafter is not None
        return chosen.drafter, first_experience(chosen, mark, target, passes, notify)

    return make


def promised(found: InstalledDrafter) -> Beliefs:
    """What a drafter's card leads one to expect before it is loaded."""
    beliefs = Beliefs()
    if claimed := claimed_acceptance(found.path):
        beliefs.expect(claimed, GUESS)
    return beliefs


def first_experience(
    chosen: Chosen,
    mark: str | None,
    target: Target,
    passes: CostTable | None = None,
    notify: Callable[[str], None] | None = None,
) -> Experience:
    """What is known of a drafter before it has drafted: its card's acceptance, and what rounds cost.

    Costs are a profile's, or those of a trial where nobody measured them; on the engine thread.

    Args:
        passes: what the target's steps and passes cost; None: not known.
        notify: told of a profile that is broken.
    """
    if mark is None or chosen.drafter is None or isinstance(chosen.drafter, Auto):
        return Experience()  # of a target of tests; of none; `auto` has one for each arm
    claimed = {} if chosen.folder is None else claimed_acceptance(chosen.folder)
    costs = measured_costs(profile_key(chosen, mark), notify)
    return Experience(Costs(costs or trial_costs(target, chosen.drafter, passes)), claimed)


def profile_key(chosen: Chosen, mark: str) -> ProfileKey:
    """What a profile of this drafter is kept by, on the target of a fingerprint."""
    machine = describe()
    drafter = chosen.name if chosen.folder is None else fingerprint(chosen.folder)
    return ProfileKey(machine.chip, machine.device, machine.mlx, mark, drafter)


def measured_costs(
    key: ProfileKey, notify: Callable[[str], None] | None = None
) -> CostTable | None:
    """What `localspec profile` measured; None: nothing yet, or a broken file, as `notify` is told."""
    if not key.path.exists():
        return None
    try:
        return cost_table(profiles.read(key) or {})
    except ValueError:
        if notify:
            notify(f"{key.path} is broken and is not used; `localspec profile` measures anew")
        return None


def _bound(folder: Path, target: Target) -> Drafter:
    drafter = load(folder)
    if mx.default_device() == mx.Device(mx.cpu):
        to_float32(drafter)
    drafter.bind(target)
    return drafter
