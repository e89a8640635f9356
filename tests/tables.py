"""A target and drafters that are tables, so that their exact laws can be written down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from localspec.engine.acceptance import Verdict, accept_sampled
from localspec.engine.sampling import SamplingParams, sample
from localspec.engine.target import Output
from localspec.models.drafter import Draw, Proposal, TargetView

Floats = npt.NDArray[np.float64]


@dataclass
class TableCache:
    """The last token that was fed, and how many were."""

    last: mx.array
    before_round: mx.array
    fed: mx.array
    num_tokens: int = 0
    arrays: tuple[()] = ()


class TableTarget:
    """Logits that depend on the last two tokens: table [V, V, V]."""

    context_length = 4096

    def __init__(self, vocab_size: int, seed: int, sharpness: float = 1.5) -> None:
        rng = np.random.default_rng(seed)
        self.logits = (sharpness * rng.standard_normal((vocab_size,) * 3)).astype(np.float32)
        self._table = mx.array(self.logits)
        self.vocab_size = vocab_size

    def new_cache(self) -> TableCache:
        zero = mx.zeros((1, 1), dtype=mx.int32)
        return TableCache(zero, zero, zero)

    def forward(
        self, tokens: mx.array, cache: TableCache, *, taps: object = (), rows: int | None = None
    ) -> Output:
        before = mx.concatenate([cache.last, tokens[:, :-1]], axis=1)
        logits = self._table[before, tokens]
        cache.before_round, cache.fed, cache.last = cache.last, tokens, tokens[:, -1:]
        cache.num_tokens += tokens.shape[1]
        return Output(logits if rows is None else logits[:, -rows:], None)

    def verify(self, tokens: mx.array, cache: TableCache, *, taps: object = ()) -> Output:
        return self.forward(tokens, cache)

    def rollback(self, cache: TableCache, *, to: int) -> None:
        cache.num_tokens -= cache.fed.shape[1] - to
        cache.last = cache.fed[:, to - 1 : to]


class TableDrafter:
    """Drafts from a table of its own, so that its proposals depend on the prefix.

    Args:
        greedy: draft the argmax, whatever the sampling.
        draw_temperature: a planted mistake: draw at this temperature, but report q at the right one.
        confident: say how likely each draft's likeliest token is.
    """

    tap_layers: tuple[int, ...] = ()
    max_width = 4

    def __init__(
        self,
        vocab_size: int,
        seed: int,
        *,
        greedy: bool = False,
        draw_temperature: float | None = None,
        confident: bool = False,
    ) -> None:
        rng = np.random.default_rng(seed)
        self._table = mx.array((1.5 * rng.standard_normal((vocab_size,) * 2)).astype(np.float32))
        self._greedy = greedy
        self._draw_temperature = draw_temperature
        self._confident = confident

    def bind(self, target: TargetView) -> None:
        pass

    def new_state(self) -> Any:
        return self

    arrays: tuple[()] = ()

    def observe(self, state: Any, next_tokens: mx.array, taps: mx.array | None) -> None:
        pass

    def propose(self, state: Any, anchor: mx.array, width: int, draw: Draw) -> Proposal:
        tokens, last = [], anchor
        confidences = []
        laws: list[mx.array | None] = []
        for _ in range(width):
            logits = self._table[last]
            confidences.append(mx.max(mx.softmax(logits, axis=-1), axis=-1))
            if self._greedy:
                last = mx.argmax(logits, axis=-1).astype(mx.int32)
            elif self._draw_temperature is not None:
                last, _ = draw(logits / self._draw_temperature)
                _, q = draw(logits)
                laws.append(q)
            else:
                last, q = draw(logits)
                laws.append(q)
            tokens.append(last)
        known = [q for q in laws if q is not None]
        return Proposal(
            tokens=mx.stack(tokens, axis=1),
            q=mx.stack(known, axis=1) if known else None,
            confidence=mx.stack(confidences, axis=1) if self._confident else None,
        )


def accept_without_subtracting(
    drafts: mx.array, q: mx.array, p: mx.array, accept_u: mx.array, token_u: mx.array
) -> Verdict:
    """A planted mistake: what takes a fallen draft's place is drawn from p, not from what q leaves."""
    num_accepted, _ = accept_sampled(drafts, q, p, accept_u, token_u)
    row = mx.take_along_axis(p, num_accepted[:, None, None], axis=1)[:, 0]
    return Verdict(num_accepted, sample(row, token_u))


def exact_law(
    target: TableTarget, prompt: list[int], params: SamplingParams, num_tokens: int
) -> Floats:
    """The probability of every continuation [V]*num_tokens, in float64 and by definition."""
    size = target.vocab_size
    law = np.zeros((size,) * num_tokens)

    def walk(said: list[int], probability: float) -> None:
        if len(said) == num_tokens:
            law[tuple(said)] = probability
            return
        tokens = [0, *prompt, *said]
        logits = target.logits[tokens[-2], tokens[-1]].astype(np.float64)
        for token, p in enumerate(next_law(logits, prompt, said, params)):
            if p > 0:
                walk([*said, token], probability * float(p))

    walk([], 1.0)
    return law


def next_law(logits: Floats, prompt: list[int], said: list[int], params: SamplingParams) -> Floats:
    """Penalties, bias, temperature, top-k, top-p, min-p, each by its definition."""
    logits = logits.copy()
    for token in range(len(logits)):
        count = said.count(token)
        if count or token in prompt:
            r = params.repetition_penalty
            logits[token] = logits[token] * r if logits[token] < 0 else logits[token] / r
        logits[token] -= params.presence_penalty * (count > 0) + params.frequency_penalty * count
        logits[token] += params.logit_bias.get(token, 0.0)
    p = np.exp((logits - logits.max()) / params.temperature)
    p /= p.sum()
    order = np.argsort(-p)
    if params.top_k:
        p[order[params.top_k :]] = 0.0
        p /= p.sum()
    if params.top_p < 1.0:
        reached = np.cumsum(p[order]) - p[order]
        p[order[reached >= params.top_p]] = 0.0
        p /= p.sum()
    p[p < params.min_p * p.max()] = 0.0
    result: Floats = p / p.sum()
    return result
