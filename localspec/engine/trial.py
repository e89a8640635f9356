"""What drafting costs, by a few drafts at loading: enough to tell which drafter cannot pay here."""

from __future__ import annotations

import time
from collections.abc import Callable

import mlx.core as mx

from localspec.engine.costs import CostTable
from localspec.engine.drawing import likeliest
from localspec.engine.target import Target
from localspec.models.drafter import Drafter

_TIMES = 2
"""The first is slow: memory is fetched, kernels are compiled."""
_POSITIONS = 16
_WIDE = 4


def trial_costs(target: Target, drafter: Drafter, known: CostTable | None = None) -> CostTable:
    """Time plain steps, passes and drafts on a few tokens; takes some eight steps, on the engine thread.

    Args:
        known: of another drafter on the same target; its steps and passes are not timed again.
    """
    widths = (0, 1, min(_WIDE, drafter.max_width)) if drafter.max_width > 1 else (0, 1)
    taps = drafter.tap_layers
    cache = target.new_cache()
    tokens = mx.zeros((1, _POSITIONS), dtype=mx.int32)
    output = target.forward(tokens, cache, taps=taps, rows=1)
    state = drafter.new_state()
    drafter.observe(state, tokens, output.taps)
    mx.eval(cache.arrays, state.arrays)

    def step(width: int) -> None:
        fed = mx.zeros((1, 1 + width), dtype=mx.int32)
        mx.eval(mx.argmax(target.verify(fed, cache, taps=taps).logits, axis=-1))
        target.rollback(cache, to=1)

    def draft(width: int) -> None:
        anchor = mx.zeros((1,), dtype=mx.int32)
        proposal = drafter.propose(state, anchor, width, likeliest)
        if proposal is not None:
            mx.eval(proposal.tokens, proposal.confidence)

    drafting = tuple(_least(draft, width) if width else 0.0 for width in widths)
    if known is None:
        passes = tuple(_least(step, width) for width in widths)
        plain = passes[0]
    else:
        passes = tuple(known.verify_at(width, 0) for width in widths)
        plain = known.plain_at(0)
    return CostTable((0,), widths, (drafting,), (passes,), (plain,))


def _least(run: Callable[[int], None], width: int) -> float:
    """Seconds of the quickest of a few runs."""
    seconds = []
    for _ in range(_TIMES):
        begun = time.perf_counter()
        run(width)
        seconds.append(time.perf_counter() - begun)
    return min(seconds)
