"""What a useless drafter costs, and how soon drafting comes back when the text becomes easy.

    python benchmarks/parking.py [--tokens N] [--turns N] [--drafter NAME] [--json]

A drafter that is always wrong, with the cost of a real one, against plain decoding over as many tokens,
in turns of fifty. Then the same drafter becomes right in the middle of an answer.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from statistics import median
from typing import Any

import mlx.core as mx

import localspec
from localspec.engine.generation import Generation
from localspec.engine.request import Committed, Request
from localspec.engine.target import Target
from localspec.models.drafter import Drafter, Draw, Proposal

_TURN = 50
"""Tokens."""

PROMPT = "Write a long story about a lighthouse keeper and the sea."


class Spoilt:
    """A drafter with its drafts replaced: by wrong ones, from some position on by right ones.

    Args:
        text: prompt and answer, as plain decoding writes them.
        right_from: the position; None: never.
    """

    def __init__(self, drafter: Drafter, text: list[int], right_from: int | None) -> None:
        self._drafter, self._text, self._right_from = drafter, text, right_from
        self.tap_layers, self.max_width = drafter.tap_layers, drafter.max_width

    def bind(self, target: Any) -> None:
        pass

    def new_state(self) -> list[Any]:
        return _State([self._drafter.new_state(), 0])

    def observe(self, state: Any, next_tokens: mx.array, taps: mx.array | None) -> None:
        self._drafter.observe(state[0], next_tokens, taps)
        state[1] += next_tokens.shape[1]

    def propose(self, state: Any, anchor: mx.array, width: int, draw: Draw) -> Proposal | None:
        made = self._drafter.propose(state[0], anchor, width, draw)
        if made is None:
            made = Proposal(mx.zeros((1, width), dtype=mx.int32))
        start = state[1] + 1
        right = self._text[start : start + made.width]
        right += [0] * (made.width - len(right))
        tokens = mx.array([right], dtype=mx.int32)
        if self._right_from is None or start < self._right_from:
            tokens = (tokens + 1) % 100
        # What the drafts were is what they cost.
        return replace(made, tokens=tokens + 0 * made.tokens, q=None)


class _State(list[Any]):
    @property
    def arrays(self) -> list[mx.array]:
        inner: list[mx.array] = self[0].arrays
        return inner


def measure(target: Target, drafter: Drafter, prompt: list[int], options: Any) -> dict[str, Any]:
    """On the engine thread."""
    request = Request(prompt, options.tokens)

    def begin(with_drafter: Any) -> Generation:
        return Generation(target, with_drafter, request)

    plain = begin(None)
    for _ in plain.run():
        pass
    ratios, parked = [], []
    for _ in range(options.turns):
        spoilt = begin(Spoilt(drafter, plain.tokens, None))
        # In short turns, since other programs come and go.
        seconds = _side_by_side(begin(None), spoilt)
        ratios.append(seconds[0] / seconds[1])
        parked.append(spoilt.stats.parked_share)
    half = len(prompt) + options.tokens // 2
    generation = begin(Spoilt(drafter, plain.tokens, half))
    rounds = again = wide = 0
    for event in generation.run():
        if isinstance(event, Committed) and len(generation.tokens) > half:
            rounds += 1
            if event.num_accepted and not again:
                again = rounds
            if event.num_accepted >= 2 and not wide:
                wide = rounds
    return {
        "tokens": options.tokens,
        "ratio_to_plain": round(median(ratios), 4),
        "ratio_min": round(min(ratios), 4),
        "ratio_max": round(max(ratios), 4),
        "parked_share": round(median(parked), 3),
        "rounds_until_a_draft_stood": again or None,
        "rounds_until_two_drafts_stood": wide or None,
        "tokens_then": options.tokens // 2,
        "rounds_then": rounds,
    }


def _side_by_side(*generations: Generation) -> list[float]:
    """Seconds of decoding of each; they take turns of some tokens."""
    seconds = [0.0 for _ in generations]
    for generation in generations:
        while not generation.stats.generated_tokens:
            generation.step()
    due = _TURN
    while any(each.finish_reason() is None for each in generations):
        for index, generation in enumerate(generations):
            begun = time.perf_counter()
            while generation.finish_reason() is None and generation.stats.generated_tokens < due:
                generation.step()
            # The step that is under way belongs to this one.
            mx.synchronize()
            seconds[index] += time.perf_counter() - begun
        due += _TURN
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("--drafter", default="ngram", help="whose costs the useless drafts have")
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model = localspec.load(options.model, drafter=options.drafter)
    report = model.measure(measure, model.encode(PROMPT), options)
    print(json.dumps(report) if options.json else "\n".join(f"{k}: {v}" for k, v in report.items()))


if __name__ == "__main__":
    main()
