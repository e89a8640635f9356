"""Which reading of a checkpoint its drafts agree with: both layouts, taps one off, normed or raw state.

A wrong reading still decodes right but drafts nothing useful, so the first draft's agreement with the
target, over some 200 positions of the target's own text, tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np

from localspec.converters.convert import translate
from localspec.converters.foreign import Options, TargetFacts
from localspec.engine.generation import Generation
from localspec.engine.request import Request
from localspec.engine.sampling import SamplingParams
from localspec.engine.target import Target
from localspec.errors import LocalspecError
from localspec.models.config import DrafterConfig, Layout
from localspec.models.drafter import Drafter
from localspec.models.load import with_tensors

NUM_POSITIONS = 200


def compare_readings(source: Path, target: Target, options: Options) -> dict[str, float]:
    """The share of first drafts that are the target's next token, for each rival reading.

    Args:
        source: the foreign checkpoint.
        target: what it was trained for.
        options: the reading to start from; it is the first of the result.
    """
    facts = TargetFacts(target.hidden_size, target.vocab_size, target.num_layers)
    converted = translate(source, target=facts, options=options)
    tokens = _text(target)
    every = tuple(range(-1, target.num_layers + 1))
    output = target.forward(mx.array([tokens]), target.new_cache(), taps=every)
    assert output.taps is not None
    mx.eval(output.taps)
    agreements = {}
    for name, config in _rivals(converted.config, target.num_layers):
        try:
            drafter: Drafter = with_tensors(config, converted.tensors, source.name)
            drafter.bind(target)
        except LocalspecError:
            continue
        where = [every.index(tap) for tap in drafter.tap_layers]
        agreements[name] = _agreement(drafter, tokens, output.taps[:, :, mx.array(where)])
    return agreements


def _rivals(config: DrafterConfig, num_layers: int) -> Iterator[tuple[str, DrafterConfig]]:
    yield "as converted", config
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


def _agreement(drafter: Drafter, tokens: list[int], taps: mx.array) -> float:
    """Teacher-forced: at each position the state has seen the true text so far."""
    state = drafter.new_state()
    hits = []
    for position in range(1, len(tokens) - 1):
        known = mx.array([[tokens[position]]], dtype=mx.int32)
        drafter.observe(state, known, taps[:, position - 1 : position])
        proposal = drafter.propose(state, known[:, 0], 1, _greedy)
        if proposal is not None:
            hits.append(proposal.tokens[0, 0] == tokens[position + 1])
    return float(np.mean(np.array(mx.stack(hits)))) if hits else 0.0


def _greedy(logits: mx.array) -> tuple[mx.array, None]:
    return mx.argmax(logits, axis=-1).astype(mx.int32), None
