"""Thousands of seeded runs of the real loop, at the cost of the different things that happen in them.

Runs whose rounds have committed the same so far are in the same state and differ only in the random
numbers of the next round. So one `Generation`, taken there by its own steps, goes on for all of them:
its own code of the round, drafter, target, acceptance and all, runs once under `mx.vmap` over their
random numbers, up to the line that reads something. Runs that read the same go on together from there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from localspec.engine import drafting, generation
from localspec.engine.generation import Generation
from localspec.engine.request import Request
from localspec.engine.sampling import Uniforms
from localspec.engine.width import Experience
from localspec.models.drafter import Drafter

USES = ("draft", "accept", "rest", "token")
POSITIONS = 10

MakeRequest = Callable[[int], Request]
Ints = npt.NDArray[np.int64]


class _Read(Exception):
    """The loop would read this array now, and is stopped."""

    def __init__(self, array: mx.array) -> None:
        self.array = array


Values = tuple[float, ...]


class _Unreadable:
    """A module of which one function stops the loop, unless what it would read is known."""

    def __init__(self, module: Any, function: str, known: Iterable[Values] = ()) -> None:
        self._module, self._function, self._known = module, function, iter(known)

    def __getattr__(self, name: str) -> Any:
        return self._read if name == self._function else getattr(self._module, name)

    def _read(self, array: Any, *_: mx.array) -> Any:
        if not isinstance(array, mx.array):
            # A drafter's state, which decides nothing.
            return None
        known = next(self._known, None)
        if known is None:
            raise _Read(array)
        return np.array(known)


class _Given:
    """In place of `Uniforms`: the numbers of one run [uses, positions]."""

    def __init__(self, numbers: mx.array) -> None:
        self._numbers = numbers

    def at(self, use: str, position: int, count: int) -> mx.array:
        assert position + count <= POSITIONS
        return self._numbers[USES.index(use), position : position + count]


@cache
def _numbers(num_runs: int) -> mx.array:
    """What `Uniforms` has for the seeds 0, 1, …: [runs, uses, positions]."""
    seeds = map(Uniforms, range(num_runs))
    return mx.array(
        [[[of._number(use, p) for p in range(POSITIONS)] for use in USES] for of in seeds]
    )


def run_one(
    target: Any,
    drafter: Drafter | None,
    request: Request,
    num_rounds: int | None = None,
    experience: Experience | None = None,
) -> Generation:
    """The plain loop, over the prompt and a number of rounds; None: to the end."""
    run = Generation(target, drafter, request, experience=experience)
    while run._cache.num_tokens < len(request.prompt) - 1:
        run.step()
    while run.finish_reason() is None and run.stats.rounds != num_rounds:
        run.step()
    return run


def run_many(
    target: Any,
    drafter: Drafter,
    request: MakeRequest,
    num_runs: int,
    experience: Callable[[], Experience] = Experience,
) -> tuple[Ints, float]:
    """What the runs of the seeds 0, 1, … generate, and the share of drafts that stood.

    Args:
        request: of a seed; requests may differ in their seeds and widths.
        experience: of a run; what it decides must not depend on the time that rounds take.

    Returns:
        [runs, tokens], and a number from 0 to 1.
    """
    texts: dict[int, list[int]] = {}
    num_proposed, num_accepted = 0, 0
    groups: dict[Any, list[int]] = defaultdict(list)
    for seed in range(num_runs):
        groups[request(seed).width, (), ()].append(seed)
    while groups:
        later: dict[Any, list[int]] = defaultdict(list)
        for (width, rounds, known), seeds in groups.items():
            run = run_one(target, drafter, request(seeds[0]), len(rounds), experience())
            if run.finish_reason() is not None:
                texts |= dict.fromkeys(seeds, run.tokens[len(run._request.prompt) :])
                num_proposed += run.stats.proposed * len(seeds)
                num_accepted += run.stats.accepted * len(seeds)
                continue
            values, is_outcome = _next_read(run, _numbers(num_runs)[mx.array(seeds)], known)
            for seed, read in zip(seeds, values.tolist(), strict=True):
                if not is_outcome:
                    # Confidences, by which the width is chosen.
                    later[width, rounds, (*known, _grouped(read))].append(seed)
                    continue
                # A plain step reads its token; a round the drafts that stand, a token, all drafts.
                committed = read if len(read) == 1 else [*read[2 : 2 + read[0]], read[1]]
                later[width, (*rounds, tuple(committed)), ()].append(seed)
        groups = later
    share = num_accepted / num_proposed if num_proposed else 0.0
    return np.array([texts[seed] for seed in range(num_runs)]), share


def _grouped(read: Any) -> Any:
    """Confidences as they group runs: what `vmap` computes differs in the last bits."""
    if isinstance(read, list):
        return tuple(_grouped(each) for each in read)
    return round(read, 5)


def _next_read(
    run: Generation, numbers: mx.array, known: tuple[Values, ...]
) -> tuple[npt.NDArray[Any], bool]:
    """What the round reads next, for each run [runs, …], and whether that is its outcome.

    Args:
        run: about to begin the round; it is useless afterwards.
        known: what the round has read already.
    """

    def values(given: mx.array) -> mx.array:
        run._uniforms = _Given(given)  # type: ignore[assignment]
        try:
            run.step()
        except _Read as stopped:
            return stopped.array
        raise AssertionError("the round read nothing")

    with pytest.MonkeyPatch.context() as patch:
        # Where a round of drafts is read, and where a plain step begins to be.
        reads = _Unreadable(np, "array", known)
        patch.setattr(generation, "np", reads)
        patch.setattr(drafting, "np", reads)
        patch.setattr(generation, "mx", _Unreadable(mx, "async_eval"))
        read = np.array(mx.vmap(values)(numbers))
    is_outcome = bool(np.issubdtype(read.dtype, np.integer))
    return (read.astype(np.int64) if is_outcome else read), is_outcome
