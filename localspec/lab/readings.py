"""Which reading of a checkpoint its drafts agree with: both layouts, taps one off, normed or raw state.

A wrong reading still decodes right but drafts nothing useful, so the first draft's agreement with the
target, over some 200 positions of the target's own text, tells them apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from localspec.converters.convert import translate
from localspec.converters.foreign import Options, TargetFacts
from localspec.engine.drawing import likeliest
from localspec.engine.generation import Generation
from localspec.engine.request import Request
from localspec.engine.sampling import SamplingParams
from localspec.engine.target import Target
from localspec.models.config import DrafterConfig, Layout
from localspec.models.drafter import Drafter
from localspec.models.load import with_tensors

Hits = npt.NDArray[np.bool_]

NUM_POSITIONS = 200
AS_CONVERTED = "as converted"
_SURE = 2.0
"""Standard deviations of the number of positions in which one of two readings alone is right."""


@dataclass(frozen=True, slots=True)
class Readings:
    """What was measured.

    Attributes:
        agreements: for each reading, that of the conversion first, the share of first drafts that are
            the target's own likeliest next token.
        too_close: readings that cannot be told from the best one, which is among them; one: it won.
    """

    agreements: dict[str, float]
    too_close: list[str]


def compare_readings(source: Path, target: Target, options: Options) -> Readings:
    """Measure the reading that a conversion has, and its rivals.

    Args:
        source: the foreign checkpoint.
        target: what it was trained for.
        options: the reading to start from.
    """
    facts = TargetFacts(target.hidden_size, target.vocab_size, target.num_layers)
    converted = translate(source, target=facts, options=options)
    tokens = _text(target)
    every = tuple(range(-1, target.num_layers + 1))
    output = target.forward(mx.array([tokens]), target.new_cache(), taps=every)
    assert output.taps is not None
    mx.eval(output.taps)
    right = mx.argmax(output.logits[0], axis=-1).astype(mx.int32)
    hits: dict[str, Hits] = {}
    for name, config in _rivals(converted.config, target.num_layers):
        drafter = with_tensors(config, converted.tensors, source.name)
        drafter.bind(target)
        where = [every.index(tap) for tap in drafter.tap_layers]
        hits[name] = _hits(drafter, tokens, output.taps[:, :, mx.array(where)], right)
    best = max(hits.values(), key=np.sum)
    return Readings(
        {name: float(np.mean(hit)) for name, hit in hits.items()},
        [name for name, hit in hits.items() if not _is_worse(hit, best)],
    )


def _is_worse(hits: Hits, best: Hits) -> bool:
    """Whether it is no chance that the best has more hits (McNemar's test of paired samples)."""
    lost, won = int((best & ~hits).sum()), int((hits & ~best).sum())
    return lost - won > _SURE * math.sqrt(lost + won)


def _rivals(config: DrafterConfig, num_layers: int) -> Iterator[tuple[str, DrafterConfig]]:
    yield AS_CONVERTED, config
    if config.block is not None:
        other: Layout = "every_slot_predicts"
        if config.block.layout == other:
            other = "anchor_slot_unused"
        yield f"layout {other}", replace(config, block=replace(config.block, layout=other))
    if config.chain is not None and config.architecture == "mtp":
        normed = not config.chain.target_normed
        what = "after its norm" if normed else "before its norm"
        chain = replace(config.chain, target_normed=normed)
        yield f"the target's state {what}", replace(config, chain=chain)
    if config.chain is not None and config.architecture == "eagle3":
        before = not config.chain.norm_before_residual
        what = "normed" if before else "raw"
        chain = replace(config.chain, norm_before_residual=before)
        yield f"the residual {what}", replace(config, chain=chain)
    for step in (-1, 1):
        taps = tuple(tap + step for tap in config.tap_layers)
        if taps and min(taps) >= -1 and max(taps) < num_layers - 1:
            yield f"taps {list(taps)}", replace(config, tap_layers=taps)


def _text(target: Target) -> list[int]:
    """The target's own text at temperature 1, from nothing but a first token."""
    request = Request([1], NUM_POSITIONS + 8, SamplingParams(temperature=1.0))
    generation = Generation(target, None, request)
    for _ in generation.run():
        pass
    return generation.tokens


def _hits(drafter: Drafter, tokens: list[int], taps: mx.array, right: mx.array) -> Hits:
    """Teacher-forced: at each position the state has seen the true text so far."""
    state = drafter.new_state()
    hits = []
    for position in range(1, len(tokens) - 1):
        known = mx.array([[tokens[position]]], dtype=mx.int32)
        drafter.observe(state, known, taps[:, position - 1 : position])
        proposal = drafter.propose(state, known[:, 0], 1, likeliest)
        assert proposal is not None, "after an observed position every trained drafter proposes"
        hits.append(proposal.tokens[0, 0] == right[position])
        mx.async_eval(hits[-1], state.arrays)
    return np.array(mx.stack(hits))
