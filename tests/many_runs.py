"""Thousands of seeded runs of the real loop, at the cost of the different things that happen in them.

Runs whose rounds have committed the same so far are in the same state and differ only in the random
numbers of the next round. So one `Generation`, taken there by its own steps, goes on for all of them:
its own code of the round, drafter, target, acceptance and all, runs once under `mx.vmap` over their
random numbers, up to the line that reads the outcome.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from localspec.engine import generation
from localspec.engine.generation import Generation
from localspec.engine.request import Request
from localspec.engine.sampling import Uniforms
from localspec.models.drafter import Drafter

USES = ("draft", "accept", "rest", "token")
POSITIONS = 10

MakeRequest = Callable[[int], Request]
Ints = npt.NDArray[np.int64]


class _Read(Exception):
    """The loop would read this array now, and is stopped."""

    def __init__(self, array: mx.array) -> None:
        self.array = array


class _Unreadable:
    """A module of which one function stops the loop."""

    def __init__(self, module: Any, function: str) -> None:
        self._module, self._function = module, function

    def __getattr__(self, name: str) -> Any:
        return self._stop if name == self._function else getattr(self._module, name)

    def _stop(self, array: mx.array) -> None:
        raise _Read(array)


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
    target: Any, drafter: Drafter | None, request: Request, num_rounds: int | None = None
) -> Generation:
    """The plain loop, over the prompt and a number of rounds; None: to the end."""
    run = Generation(target, drafter, request)
    while run._cache.num_tokens < len(request.prompt) - 1:
        run.step()
    while run.finish_reason() is None and run.stats.rounds != num_rounds:
        run.step()
    return run


def run_many(
    target: Any, drafter: Drafter, request: MakeRequest, num_runs: int
) -> tuple[Ints, float]:
    """What the runs of the seeds 0, 1, … generate, and the share of drafts that stood.

    Args:
        request: of a seed; requests may differ in their seeds and widths.

    Returns:
        [runs, tokens], and a number from 0 to 1.
    """
    texts: dict[int, list[int]] = {}
    num_proposed, num_accepted = 0, 0
    groups: dict[Any, list[int]] = defaultdict(list)
    for seed in range(num_runs):
        groups[request(seed).width, ()].append(seed)
    while groups:
        later: dict[Any, list[int]] = defaultdict(list)
        for (width, rounds), seeds in groups.items():
            run = run_one(target, drafter, request(seeds[0]), len(rounds))
            if run.finish_reason() is not None:
                texts |= dict.fromkeys(seeds, run.tokens[len(run._request.prompt) :])
                num_proposed += run.stats.proposed * len(seeds)
                num_accepted += run.stats.accepted * len(seeds)
                continue
            values = _next_round(run, _numbers(num_runs)[mx.array(seeds)])
            for seed, read in zip(seeds, values.tolist(), strict=True):
                # A plain step reads its token; a round the drafts that stand, a token, all drafts.
                committed = read if len(read) == 1 else [*read[2 : 2 + read[0]], read[1]]
                later[width, (*rounds, tuple(committed))].append(seed)
        groups = later
    share = num_accepted / num_proposed if num_proposed else 0.0
    return np.array([texts[seed] for seed in range(num_runs)]), share


def _next_round(run: Generation, numbers: mx.array) -> Ints:
    """What the next round reads, for each run [runs, values]; leaves `run` useless."""

    def values(given: mx.array) -> mx.array:
        run._uniforms = _Given(given)  # type: ignore[assignment]
        try:
            run.step()
        except _Read as stopped:
            return stopped.array
        raise AssertionError("the round read nothing")

    with pytest.MonkeyPatch.context() as patch:
        # Where a round of drafts is read, and where a plain step begins to be.
        patch.setattr(generation, "np", _Unreadable(np, "array"))
        patch.setattr(generation, "mx", _Unreadable(mx, "async_eval"))
        return np.array(mx.vmap(values)(numbers)).astype(np.int64)
