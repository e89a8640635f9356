"""Proof of losslessness for one target and drafter: greedy ids, and the law of sampled tokens.

Both go through the loop that answers users, width policy and all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import mlx.core as mx
import numpy as np

from localspec.engine.generation import Generation
from localspec.engine.request import Committed, Request
from localspec.engine.sampling import History, SamplingParams
from localspec.engine.target import Target
from localspec.engine.width import Experience
from localspec.lab.law import (
    Check,
    Draws,
    Floats,
    check_drafter,
    check_ids,
    check_joint,
    check_places,
    check_tokens,
    classify,
    favours,
    join,
    lot,
)
from localspec.lab.noise import margin, measure
from localspec.models.drafter import Drafter

Progress = Callable[[int, int], None]

_PIECE = 64
"""Rows of a law that are computed at once."""
_POSITIONS = 64
"""At which wide passes are compared with single steps, where no text parts."""
_EDGE = 1e-3
"""Relative: a token this near the edge of a filter may fall on either side of it."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a greedy text with drafts parts from the plain one.

    Attributes:
        prompt: its number, from 0.
        position: tokens generated before.
        plain, drafted: the two tokens; None: the text had ended.
        margin: between the target's two best logits there, decoding one by one.
        excused: no more than rounding explains.
    """

    prompt: int
    position: int
    plain: int | None
    drafted: int | None
    margin: float
    excused: bool


@dataclass(slots=True)
class GreedyProof:
    """Greedy texts with and without the drafter.

    Attributes:
        prompts, identical, tokens: texts compared, those that are equal, tokens in them.
        accepted, proposed: drafts that stood, and that were verified.
        noise: the largest difference between a logit of a wide pass and of one-token decoding, in
            texts that part, or in the beginning of one if none does.
        rounding: the most of it that rounding explains.
    """

    prompts: int = 0
    identical: int = 0
    tokens: int = 0
    accepted: int = 0
    proposed: int = 0
    noise: float = 0.0
    rounding: float = 0.0
    divergences: list[Divergence] = field(default_factory=list)

    @property
    def is_rounding(self) -> bool:
        """Whether wide passes are right up to rounding."""
        return self.noise <= self.rounding

    @property
    def passed(self) -> bool:
        return self.is_rounding and all(each.excused for each in self.divergences)


@dataclass(slots=True)
class SampledProof:
    """Sampled texts against the target's exact laws.

    Attributes:
        accepted, proposed: drafts that stood, and that were verified.
        impossible: tokens that the filters exclude.
        law, ids, drafter, places, joint: the tests.
    """

    sampling: SamplingParams
    accepted: int
    proposed: int
    impossible: int
    law: Check
    ids: Check
    drafter: Check
    places: Check
    joint: Check

    @property
    def passed(self) -> bool:
        return not self.impossible and all(
            check.passed for check in (self.law, self.ids, self.drafter, self.places, self.joint)
        )


def prove_greedy(
    target: Target,
    drafter: Drafter | None,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    *,
    stop_ids: frozenset[int] = frozenset(),
    width: int | None = None,
    progress: Progress = lambda done, total: None,
) -> GreedyProof:
    """Decode every prompt both ways; on the engine thread."""
    proof = GreedyProof()
    experience = Experience()
    texts, partings = [], []
    for number, prompt in enumerate(prompts):
        request = Request(prompt, num_tokens, stop_ids=stop_ids, width=width)
        plain = decode(target, None, request)
        drafted = decode(target, drafter, request, experience)
        proof.prompts += 1
        proof.tokens += plain.stats.generated_tokens
        proof.accepted += drafted.stats.accepted
        proof.proposed += drafted.stats.proposed
        texts.append(plain.tokens)
        at = parting(plain.tokens, drafted.tokens)
        if at is None:
            proof.identical += 1
        else:
            partings.append((number, at, drafted.tokens))
        progress(number + 1, len(prompts))
    if proof.proposed:
        most = width or (drafter.max_width if drafter else 1)
        widths = sorted({1, min(4, most), most})
        # Sampled text is judged by wide passes, so they must be right where no greedy text parts too.
        read = [texts[number] for number, _, _ in partings] or [texts[0][:_POSITIONS]]
        noise = measure(target, read, widths)
        proof.noise = max(each.largest for each in noise.values())
        proof.rounding = min(each.rounding for each in noise.values())
    for number, at, drafted_text in partings:
        text = texts[number]
        gap = margin_at(target, text, at)
        one, other = _token(text, at), _token(drafted_text, at)
        # Each of the two logits may be off by the noise, as long as that is no more than rounding.
        near = gap <= 2 * proof.noise and proof.is_rounding
        excused = near and one is not None and other is not None
        position = at - len(prompts[number])
        proof.divergences.append(Divergence(number, position, one, other, gap, excused))
    return proof


def prove_sampled(
    target: Target,
    drafter: Drafter | None,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    num_samples: int,
    num_tokens: int,
    *,
    seed: int = 0,
    width: int | None = None,
    progress: Progress = lambda done, total: None,
) -> SampledProof:
    """Sample texts with the drafter until there are so many tokens; on the engine thread.

    Args:
        num_tokens: of each text.
    """
    experience = Experience()
    parts: list[Draws] = []
    accepted = proposed = impossible = done = 0
    while done < num_samples:
        prompt = prompts[len(parts) % len(prompts)]
        # No stop: what is tested is the law of every token, whatever it means.
        request = Request(prompt, num_tokens, sampling, seed + len(parts), width=width)
        generation = Generation(target, drafter, request, experience=experience)
        places: list[int] = []
        for event in generation.run():
            if isinstance(event, Committed):
                places += range(len(event.tokens))
        accepted += generation.stats.accepted
        proposed += generation.stats.proposed
        said = generation.tokens[len(prompt) :]
        draws, excluded = _draws(target, drafter, prompt, said, sampling)
        draws.places, draws.texts = np.array(places), np.full(len(places), len(parts))
        parts.append(draws)
        impossible += excluded
        done += len(places)
        progress(min(done, num_samples), num_samples)
    draws = join(parts)
    return SampledProof(
        sampling,
        accepted,
        proposed,
        impossible,
        check_tokens(draws),
        check_ids(draws),
        check_drafter(draws),
        check_places(draws),
        check_joint(draws),
    )


def decode(
    target: Target,
    drafter: Drafter | None,
    request: Request,
    experience: Experience | None = None,
) -> Generation:
    """A whole generation, through the loop that answers users."""
    generation = Generation(target, drafter, request, experience=experience)
    for _ in generation.run():
        pass
    return generation


def parting(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Where two texts part; one that ends earlier parts there. None: they are the same."""
    pairs = enumerate(zip_longest(left, right))
    return next((at for at, (one, other) in pairs if one != other), None)


def _token(text: list[int], at: int) -> int | None:
    return text[at] if at < len(text) else None


def margin_at(target: Target, text: list[int], at: int) -> float:
    """Between the two best logits for the token at a place."""
    cache = target.new_cache()
    if at > 1:
        target.forward(mx.array([text[: at - 1]]), cache, rows=1)
    return margin(target.forward(mx.array([[text[at - 1]]]), cache, rows=1).logits[0, -1])


def _draws(
    target: Target,
    drafter: Drafter | None,
    prompt: Sequence[int],
    said: list[int],
    sampling: SamplingParams,
) -> tuple[Draws, int]:
    """The law of each token of a text, by the target alone; and how many tokens it excludes."""
    history = History(sampling, prompt, target.vocab_size)
    taps = drafter.tap_layers if drafter else ()
    shadow = _Shadow(drafter, sampling, target.vocab_size)
    cache = target.new_cache()
    if len(prompt) > 1:
        output = target.forward(mx.array([list(prompt[:-1])]), cache, taps=taps, rows=1)
        shadow.observe(list(prompt[1:]), output.taps)
    fed = [prompt[-1], *said]
    classes: list[tuple[int, Floats]] = []
    impossible = 0
    for start in range(0, len(said), _PIECE):
        rows = said[start : start + _PIECE]
        tokens = mx.array([fed[start : start + len(rows)]])
        output = target.forward(tokens, cache, taps=taps)
        # As one round whose drafts all stood.
        given = mx.array([rows[:-1]], dtype=mx.int32) if len(rows) > 1 else None
        penalised = history.penalise(output.logits, given)
        laws = np.array(sampling.distribution(penalised)[0]).astype(np.float64)
        history.commit(mx.array(rows))
        for row, token in enumerate(rows):
            law = laws[row] / laws[row].sum()
            if law[token] == 0.0 and not _is_on_edge(penalised[0, row], token, sampling):
                impossible += 1
            drafted = shadow.law(fed[start + row])
            classes += [classify(law, token), favours(law, drafted, token), lot(law, token)]
            shadow.observe([token], None if output.taps is None else output.taps[:, row : row + 1])
    none = np.zeros(0, dtype=np.int64)
    columns = [
        (np.array(c), np.array(p)) for c, p in (zip(*classes[k::3], strict=True) for k in range(3))
    ]
    (seen, promised), (favour, favour_promised), (lots, lots_promised) = columns
    draws = Draws(seen, promised, none, none, favour, favour_promised, lots, lots_promised)
    return draws, impossible


class _Shadow:
    """The drafter beside a text that is there already: what it would have drafted at each place."""

    def __init__(self, drafter: Drafter | None, sampling: SamplingParams, size: int) -> None:
        self._drafter, self._sampling, self._size = drafter, sampling, size
        self._state = drafter.new_state() if drafter else None

    def observe(self, next_tokens: list[int], taps: mx.array | None) -> None:
        if self._drafter is not None:
            self._drafter.observe(self._state, mx.array([next_tokens], dtype=mx.int32), taps)

    def law(self, anchor: int) -> Floats | None:
        """Of the first draft [V]; None: nothing is drafted."""
        if self._drafter is None:
            return None
        anchors = mx.array([anchor], dtype=mx.int32)
        proposal = self._drafter.propose(self._state, anchors, 1, self._draw)
        if proposal is None:
            return None
        if proposal.q is None:
            certain: Floats = np.zeros(self._size)
            certain[int(np.array(proposal.tokens)[0, 0])] = 1.0
            return certain
        drawn: Floats = np.array(proposal.q[0, 0]).astype(np.float64)
        return drawn

    def _draw(self, logits: mx.array) -> tuple[mx.array, mx.array]:
        drawn = mx.argmax(logits, axis=-1).astype(mx.int32)
        return drawn, self._sampling.distribution(logits)


def _is_on_edge(logits: mx.array, token: int, sampling: SamplingParams) -> bool:
    """Whether filters that are wider by a trifle let the token through."""
    wider = SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k and sampling.top_k + 1,
        top_p=min(1.0, sampling.top_p * (1 + _EDGE)),
        min_p=sampling.min_p * (1 - _EDGE),
    )
    return bool(np.array(wider.distribution(logits))[token] > 0.0)
