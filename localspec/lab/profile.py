"""What rounds cost on this machine: drafting and verifying by width and depth, measured in turns.

Also how near the machine's limits they run, and how far wide passes differ from one-token decoding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from localspec.engine.acceptance import accept_certain
from localspec.engine.drawing import likeliest
from localspec.engine.generation import PREFILL_CHUNK
from localspec.engine.target import Target, TargetCache
from localspec.errors import UsageError
from localspec.lab import noise
from localspec.models.drafter import Drafter

Say = Callable[[str], None]

DEPTHS = (64, 512, 2048, 8192)
_PREFILL_SHARE = 0.25
_ROUNDS_SHARE = 0.45
_NOISE_SHARE = 0.3
_LEAST_TURNS, _MOST_TURNS = 3, 25
_PLAIN_STEPS = 3
_STREAM_BYTES = 2**28
_COLUMNS = 4096
_MATRIX = 1536


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: the median of several, and the interquartile range."""

    median: float
    spread: float


@dataclass(frozen=True, slots=True)
class DepthCosts:
    """At one context depth.

    Attributes:
        depth: positions in the cache.
        plain: a step of plain decoding.
        draft, verify: by width, in the order of the profile's widths; width 0 drafts nothing.
        plain_bound: seconds of a step if memory alone decided.
        plain_share: how much of the memory's speed a plain step uses.
        wide_share: how much of the nearer limit, memory or arithmetic, the widest round's pass uses.
    """

    depth: int
    plain: Timing
    draft: tuple[Timing, ...]
    verify: tuple[Timing, ...]
    plain_bound: float
    plain_share: float
    wide_share: float


@dataclass(slots=True)
class Profile:
    """All that was measured.

    Attributes:
        widths: from 0.
        bandwidth: bytes a second that a sum over much memory reads.
        arithmetic: floating-point operations a second of a large matrix product.
        weight_bytes: read by a step.
        noise: by width.
        seconds: how long it took.
    """

    widths: tuple[int, ...]
    bandwidth: float
    arithmetic: float
    weight_bytes: int
    depths: list[DepthCosts] = field(default_factory=list)
    noise: dict[int, noise.Noise] = field(default_factory=dict)
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "widths": list(self.widths),
            "bandwidth": self.bandwidth,
            "arithmetic": self.arithmetic,
            "weight_bytes": self.weight_bytes,
            "depths": [asdict(each) for each in self.depths],
            "noise": {str(width): each.as_dict() for width, each in self.noise.items()},
            "seconds": self.seconds,
        }


def measure(
    target: Target,
    drafter: Drafter | None,
    text: Sequence[int],
    *,
    budget_s: float = 45.0,
    share: float = 1.0,
    depths: Sequence[int] | None = None,
    positions: int | None = None,
    known: dict[int, noise.Noise] | None = None,
    say: Say = lambda note: None,
) -> Profile:
    """Measure a target with a drafter; on the engine thread.

    Args:
        text: token ids of ordinary text, repeated as far as depths need it.
        budget_s: seconds that it may take, on a machine where a few rounds of each kind fit into it.
        share: of it, for what is the drafter's own.
        depths: None: as many of `DEPTHS` as the time allows.
        positions: at which wide passes are compared with single steps; None: as the time allows.
        known: what such a comparison, by width, has found on this target already.

    Raises:
        UsageError: a depth that was asked for does not fit the target's context.
    """
    begun = time.perf_counter()
    most = drafter.max_width if drafter else 1
    profile = Profile(
        tuple(range(most + 1)), _bandwidth(), _arithmetic(target), _weight_bytes(target)
    )
    step_s, token_s = _speeds(target, text)
    # Every round commits a token.
    growth = (_LEAST_TURNS + 2) * (most + 2 + _PLAIN_STEPS)
    room = target.context_length - growth
    if depths is None:
        limit = _PREFILL_SHARE * share * budget_s / token_s
        affordable = [d for n, d in enumerate(DEPTHS) if n == 0 or sum(DEPTHS[: n + 1]) <= limit]
        depths = [depth for depth in affordable if depth < room] or [1]
    elif max(depths) >= room:
        raise UsageError(
            f"a depth of {max(depths)} tokens and the rounds there do not fit the model's context of "
            f"{target.context_length}"
        )
    turn_s = step_s * (_PLAIN_STEPS + sum(1.2 + 0.1 * width for width in profile.widths))
    least = _LEAST_TURNS * turn_s * len(depths) + token_s * sum(depths)
    known = known or {}
    is_known = max(known, default=0) >= most
    compared_s = 0.0 if is_known else _NOISE_SHARE * budget_s
    say(f"this takes about {max(_ROUNDS_SHARE * share * budget_s, least) + compared_s:.0f} s")
    for depth in depths:
        until = time.perf_counter() + _ROUNDS_SHARE * share * budget_s / len(depths)
        say(f"rounds at a context of {depth} tokens")
        profile.depths.append(_at_depth(target, drafter, text, depth, profile, until))
    if is_known:
        profile.noise = {width: each for width, each in known.items() if width <= most}
    else:
        widths = sorted({1, min(4, most), most}) if positions is None else list(range(1, most + 1))
        pieces = _pieces(text, positions, compared_s, step_s, len(widths))
        say(f"wide passes against single steps at {sum(map(len, pieces))} positions")
        profile.noise = noise.measure(target, pieces, widths)
    profile.seconds = time.perf_counter() - begun
    return profile


def _speeds(target: Target, text: Sequence[int]) -> tuple[float, float]:
    """Seconds of a plain step, and of a token of a prompt."""
    cache = target.new_cache()
    chunk = mx.array([_repeated(text, 128)])
    # The first pass compiles.
    mx.eval(target.forward(chunk, target.new_cache(), rows=1).logits)
    begun = time.perf_counter()
    mx.eval(target.forward(chunk, cache, rows=1).logits, cache.arrays)
    token_s = (time.perf_counter() - begun) / chunk.shape[1]
    begun = time.perf_counter()
    for _ in range(4):
        mx.eval(target.forward(chunk[:, :1], cache, rows=1).logits)
    return (time.perf_counter() - begun) / 4, token_s


def _at_depth(
    target: Target,
    drafter: Drafter | None,
    text: Sequence[int],
    depth: int,
    profile: Profile,
    until: float,
) -> DepthCosts:
    rounds = _Rounds(target, drafter, _repeated(text, depth + 1))
    plain: list[float] = []
    draft: dict[int, list[float]] = {width: [] for width in profile.widths}
    verify: dict[int, list[float]] = {width: [] for width in profile.widths}
    turn = 0
    full = target.context_length - len(profile.widths) - 2 * _PLAIN_STEPS
    # What is slow only once is no median.
    while turn < _LEAST_TURNS or (turn < _MOST_TURNS and time.perf_counter() < until):
        if rounds.cache.num_tokens > full:
            break
        plain += rounds.plain()
        for width in profile.widths if turn % 2 else reversed(profile.widths):
            drafting, rest = rounds.round(width)
            draft[width].append(drafting)
            verify[width].append(rest)
        turn += 1
    nbytes = profile.weight_bytes + rounds.cache.nbytes
    bound = nbytes / profile.bandwidth
    step = _timing(plain)
    last = profile.widths[-1]
    wide = max(bound, _operations(target) * (1 + last) / profile.arithmetic)
    return DepthCosts(
        depth,
        step,
        tuple(_timing(draft[width]) for width in profile.widths),
        tuple(_timing(verify[width]) for width in profile.widths),
        plain_bound=bound,
        plain_share=bound / step.median,
        wide_share=wide / median(verify[last]),
    )


class _Rounds:
    """Rounds on one cache, of which each commits one token; the loop's own parts, timed apart."""

    def __init__(self, target: Target, drafter: Drafter | None, text: list[int]) -> None:
        self.cache: TargetCache = target.new_cache()
        self._target, self._drafter = target, drafter
        self._taps = drafter.tap_layers if drafter else ()
        self._state: Any = drafter.new_state() if drafter else None
        self._text = text
        for start in range(0, len(text) - 1, PREFILL_CHUNK):
            end = min(start + PREFILL_CHUNK, len(text) - 1)
            output = target.forward(
                mx.array([text[start:end]]), self.cache, taps=self._taps, rows=1
            )
            self._observe(text[start + 1 : end + 1], output.taps)
            mx.eval(self.cache.arrays, [] if self._state is None else self._state.arrays)
        self._anchor = text[-1]

    def plain(self) -> list[float]:
        """Seconds of each of some plain steps; the next one is under way before one is read."""
        token = mx.array([[self._anchor]])
        seconds = []
        ahead = self._launch(token)
        for _ in range(_PLAIN_STEPS):
            begun = time.perf_counter()
            following = self._launch(ahead)
            ahead.item()
            ahead = following
            seconds.append(time.perf_counter() - begun)
        mx.eval(ahead)
        # The drafter has not seen these; it goes on as if they had not been.
        return seconds

    def round(self, width: int) -> tuple[float, float]:
        """Seconds of drafting, and of the rest of a round."""
        begun = time.perf_counter()
        drafts = self._draft(width)
        drafted = time.perf_counter()
        anchor = mx.array([[self._anchor]], dtype=mx.int32)
        fed = anchor if drafts is None else mx.concatenate([anchor, drafts], axis=1)
        output = self._target.verify(fed, self.cache, taps=self._taps)
        chosen = mx.argmax(output.logits, axis=-1).astype(mx.int32)
        if drafts is None:
            np.array(chosen)
        else:
            verdict = accept_certain(drafts, chosen)
            np.array(mx.concatenate([verdict.num_accepted, verdict.token]))
        self._target.rollback(self.cache, to=1)
        self._observe([self._anchor], None if output.taps is None else output.taps[:, :1])
        return drafted - begun, time.perf_counter() - drafted

    def _launch(self, token: mx.array) -> mx.array:
        logits = self._target.forward(token, self.cache, rows=1).logits
        chosen = mx.argmax(logits, axis=-1)
        mx.async_eval(chosen)
        return chosen

    def _draft(self, width: int) -> mx.array | None:
        if not width or self._drafter is None:
            return None
        anchor = mx.array([self._anchor], dtype=mx.int32)
        proposal = self._drafter.propose(self._state, anchor, width, likeliest)
        if proposal is None:
            return mx.full((1, width), self._anchor, dtype=mx.int32)
        mx.eval(proposal.tokens, proposal.confidence)
        missing = width - proposal.width
        # The n-gram drafter may have less to say; the round has its width all the same.
        return mx.pad(proposal.tokens, [(0, 0), (0, missing)], constant_values=self._anchor)

    def _observe(self, next_tokens: list[int], taps: mx.array | None) -> None:
        if self._drafter is not None:
            self._drafter.observe(self._state, mx.array([next_tokens], dtype=mx.int32), taps)
            mx.async_eval(self._state.arrays)


def _timing(seconds: list[float]) -> Timing:
    low, high = np.percentile(seconds, [25, 75])
    return Timing(float(median(seconds)), float(high - low))


def _repeated(text: Sequence[int], length: int) -> list[int]:
    return [text[index % len(text)] for index in range(length)]


def _pieces(
    text: Sequence[int], positions: int | None, seconds: float, step_s: float, num_widths: int
) -> list[list[int]]:
    """Texts of some hundred tokens at which single steps and wide passes are compared."""
    if positions is None:
        # A wide pass over the same positions takes about as long as half the single steps.
        positions = int(min(4096 / num_widths, seconds / (step_s * (1 + 0.5 * num_widths))))
    positions = max(positions, 32)
    whole = _repeated(text, positions)
    return [whole[start : start + 256] for start in range(0, positions, 256)]


def _bandwidth() -> float:
    """Bytes a second of a product of a large matrix and a vector, which is all reading."""
    matrix = mx.ones((_STREAM_BYTES // 4 // _COLUMNS, _COLUMNS))
    vector = mx.ones(_COLUMNS)
    mx.eval(matrix, vector)
    return _STREAM_BYTES / _best(lambda: mx.eval(matrix @ vector))


def _arithmetic(target: Target) -> float:
    """Operations a second of a matrix product of the target's own kind of number."""
    kinds = [
        array.dtype for _, array in _weights(target) if mx.issubdtype(array.dtype, mx.floating)
    ]
    matrix = mx.ones((_MATRIX, _MATRIX), dtype=kinds[0] if kinds else mx.float32)
    mx.eval(matrix)
    return 2 * float(_MATRIX) ** 3 / _best(lambda: mx.eval(matrix @ matrix))


def _best(run: Callable[[], None]) -> float:
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def _weight_bytes(target: Target) -> int:
    """Bytes of weights that a step reads: all but an embedding table that is not also the head."""
    weights = _weights(target)
    if not any("lm_head" in name for name, _ in weights):
        return target.nbytes
    return target.nbytes - sum(array.nbytes for name, array in weights if "embed_tokens" in name)


def _weights(target: Target) -> list[tuple[str, mx.array]]:
    return cast(list[tuple[str, mx.array]], tree_flatten(target.model.parameters()))


def _operations(target: Target) -> float:
    """Floating-point operations of a token, by the sizes of the matrices."""
    total, has_head = 0, False
    for name, layer in target.model.named_modules():
        if isinstance(layer, nn.QuantizedLinear):
            total += layer.weight.size * 32 // layer.bits
        elif isinstance(layer, nn.Linear):
            total += layer.weight.size
        has_head = has_head or "lm_head" in name
    if not has_head:
        total += target.vocab_size * target.hidden_size
    return 2.0 * total
