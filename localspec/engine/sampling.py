"""From logits to the distribution that a token is drawn from, with everything that shapes it.

The order is penalties, bias, temperature, top-k, top-p, min-p, in float32 throughout. The result is the
law that speculation must preserve; drafters draw from their own logits through the same filters.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import mlx.core as mx

from localspec.errors import UsageError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. Values out of range raise `UsageError` with the parameter's name.

    Attributes:
        temperature: 0 takes the most likely token.
        top_k: keep the k most likely tokens (ties kept); 0: all.
        top_p: keep the fewest tokens whose probabilities reach this sum; 1: all.
        min_p: keep tokens at least this fraction as likely as the most likely one; 0: all.
        repetition_penalty: divides positive and multiplies negative logits of tokens that occur in
            the prompt or the output (arXiv 1909.05858); 1: none.
        presence_penalty: subtracted from the logits of tokens that occur in the output.
        frequency_penalty: subtracted once for each time a token occurs in the output.
        logit_bias: added to the logits of single tokens, by id.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        _require(self.temperature, "temperature", 0.0, 1e6)
        _require(self.top_k, "top_k", 0, 2**31)
        _require(self.top_p, "top_p", 0.0, 1.0, low_open=True)
        _require(self.min_p, "min_p", 0.0, 1.0)
        _require(self.repetition_penalty, "repetition_penalty", 0.0, 1e6, low_open=True)
        _require(self.presence_penalty, "presence_penalty", -1e6, 1e6)
        _require(self.frequency_penalty, "frequency_penalty", -1e6, 1e6)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def counts_history(self) -> bool:
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    def distribution(self, logits: mx.array) -> mx.array:
        """Temperature and filters: logits [..., V] -> probabilities [..., V] (float32).

        At temperature 0 the result is undefined; take the argmax instead.
        """
        scaled = logits.astype(mx.float32) * (1.0 / self.temperature)
        size = scaled.shape[-1]
        if 0 < self.top_k < size:
            kth = mx.min(mx.topk(scaled, self.top_k, axis=-1), axis=-1, keepdims=True)
            scaled = mx.where(scaled < kth, -mx.inf, scaled)
        if self.top_p < 1.0:
            scaled = _keep_top_p(scaled, self.top_p)
        if self.min_p > 0.0:
            floor = mx.max(scaled, axis=-1, keepdims=True) + math.log(self.min_p)
            scaled = mx.where(scaled < floor, -mx.inf, scaled)
        return mx.softmax(scaled, axis=-1, precise=True)


def _keep_top_p(scaled: mx.array, top_p: float) -> mx.array:
    ascending = mx.sort(scaled, axis=-1)
    above = mx.cumsum(mx.softmax(ascending, axis=-1), axis=-1, reverse=True, inclusive=False)
    num_dropped = mx.sum(above >= top_p, axis=-1, keepdims=True)
    # Rounding may leave a sum of no tokens below top_p; the most likely token always stays.
    num_dropped = mx.minimum(num_dropped, scaled.shape[-1] - 1)
    threshold = mx.take_along_axis(ascending, num_dropped, axis=-1)
    return mx.where(scaled < threshold, -mx.inf, scaled)


def _require(value: float, name: str, low: float, high: float, *, low_open: bool = False) -> None:
    if math.isnan(value) or value > high or value < low or (low_open and value == low):
        bracket = "more than" if low_open else "at least"
        raise UsageError(f"{name} must be {bracket} {low:g} and at most {high:g}, not {value}")


class History:
    """Counts of what was said, on the device, for penalties and bias; grows without a synchronisation.

    Args:
        params: decides whether anything needs to be counted.
        prompt: prompt ids, counted by the repetition penalty alone.
        vocab_size: V.
    """

    def __init__(self, params: SamplingParams, prompt: Sequence[int], vocab_size: int) -> None:
        self._params = params
        self._bias: mx.array | None = None
        if params.logit_bias:
            outside = [token for token in params.logit_bias if not 0 <= token < vocab_size]
            if outside:
                raise UsageError(f"logit_bias names token {outside[0]}, outside the vocabulary")
            ids = mx.array(list(params.logit_bias))
            values = mx.array(list(params.logit_bias.values()), dtype=mx.float32)
            self._bias = mx.zeros(vocab_size).at[ids].add(values)
        if params.counts_history:
            self._counts = mx.zeros(vocab_size)
            self._in_prompt = mx.zeros(vocab_size, dtype=mx.bool_)
            if prompt:
                self._in_prompt[mx.array(sorted(set(prompt)))] = True

    def commit(self, tokens: mx.array) -> None:
        """Count committed output tokens [n]."""
        if self._params.counts_history:
            self._counts = self._counts.at[tokens].add(1.0)

    def penalise(self, logits: mx.array, drafts: mx.array | None = None) -> mx.array:
        """Penalties and bias, row by row: row k has seen the history and drafts 1..k.

        Args:
            logits: [1, 1+w, V].
            drafts: [1, w] int32; None: w is 0.

        Returns:
            [1, 1+w, V] float32.
        """
        logits = logits.astype(mx.float32)
        if self._params.counts_history:
            counts = self._counts[None, None]
            if drafts is not None:
                size = logits.shape[-1]
                drafted = (drafts[..., None] == mx.arange(size)).astype(mx.float32)
                before = mx.pad(mx.cumsum(drafted, axis=1), [(0, 0), (1, 0), (0, 0)])
                counts = counts + before
            said = counts > 0
            penalty = self._params.repetition_penalty
            if penalty != 1.0:
                penalised = mx.where(logits < 0, logits * penalty, logits / penalty)
                logits = mx.where(said | self._in_prompt, penalised, logits)
            logits = logits - said * self._params.presence_penalty
            logits = logits - counts * self._params.frequency_penalty
        return logits if self._bias is None else logits + self._bias


class Uniforms:
    """Uniform numbers of one request: each depends on the seed, its use and its position alone.

    So the token at a position does not depend on how rounds were cut, and where drafts are certain the
    text is the same with and without them. A keyed hash on the host: no global generator, no device
    work.

    Args:
        seed: any integer; its low 64 bits count.
    """

    def __init__(self, seed: int) -> None:
        self._key = struct.pack("<Q", seed & (2**64 - 1))

    def at(self, use: str, position: int, count: int) -> mx.array:
        """[count] float32 in [0, 1), for positions position..position+count-1."""
        numbers = [self._number(use, position + offset) for offset in range(count)]
        return mx.array(numbers, dtype=mx.float32)

    def _number(self, use: str, position: int) -> float:
        message = f"{use} {position}".encode()
        digest = hashlib.blake2b(message, key=self._key, digest_size=4).digest()
        # 24 bits: exact in float32, and never rounded up to 1.
        return float(int.from_bytes(digest, "little") >> 8) / 2**24


def sample(probabilities: mx.array, uniform: mx.array) -> mx.array:
    """One draw a row, by inversion: [..., V] float32 (any positive sum), [...] -> [...] int32."""
    sums = mx.cumsum(probabilities, axis=-1)
    reached = sums > uniform[..., None] * sums[..., -1:]
    # Rounding can leave no sum above the last point; the most likely token stands in.
    first = mx.argmax(reached, axis=-1)
    best = mx.argmax(probabilities, axis=-1)
    return mx.where(mx.any(reached, axis=-1), first, best).astype(mx.int32)
