"""The drafting of a round: as many drafts as the width policy wants to see verified."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from localspec.engine.grammar import Grammar
from localspec.engine.policy import WidthPolicy
from localspec.models.drafter import Drafter, Draw, Proposal, StoppingDrafter


@dataclass(slots=True)
class Drafted:
    """A round's drafting.

    Attributes:
        proposal: what to verify; None: a plain step.
        confidences: of its drafts.
        num_drafted: drafts that were computed.
        seconds: how long it took; None: nothing was read, so it is not told from the rest.
    """

    proposal: Proposal | None = None
    confidences: list[float | None] = field(default_factory=list)
    num_drafted: int = 0
    seconds: float | None = None


@dataclass(slots=True)
class _Reader:
    """A chain's pace: reads each confidence and asks the policy."""

    policy: WidthPolicy
    confidences: list[float | None] = field(default_factory=list)
    num_computed: int = 0

    def wants(self, confidence: mx.array) -> bool:
        self.num_computed += 1
        read = [*self.confidences, float(np.array(confidence)[0])]
        if not self.policy.wants(read):
            return False
        self.confidences = read
        return True

    def wants_more(self) -> bool:
        return self.policy.wants_more(self.confidences)


def make_drafts(
    drafter: Drafter,
    state: Any,
    anchor: mx.array,
    width: int,
    draw: Draw,
    policy: WidthPolicy,
    grammar: Grammar | None,
    begun: float,
) -> Drafted:
    """Draft, cut at what the grammar forbids, and cut where the policy says.

    Args:
        state: the drafter's, up to date.
        anchor: [1] int32.
        width: drafts to ask for, at least 1.
        begun: when the round did, by `time.perf_counter`.
    """
    pace = _Reader(policy) if policy.reads_confidence else None
    proposal, num_drafted = _propose(drafter, state, anchor, width, draw, pace)
    if proposal is not None and grammar is not None:
        proposal = _lawful(proposal, grammar)
    if proposal is None:
        return Drafted(None, [], num_drafted, time.perf_counter() - begun)
    confidences: list[float | None] = [None] * proposal.width
    if pace is None:
        return Drafted(proposal, confidences, num_drafted)
    if pace.num_computed:
        confidences = pace.confidences[: proposal.width]
    elif proposal.confidence is not None:
        confidences = np.array(proposal.confidence)[0].tolist()
    told = proposal.confidence is not None
    seconds = time.perf_counter() - begun if told else None
    if not pace.num_computed:
        kept = policy.cut(confidences, certain=proposal.q is None)
        confidences = confidences[:kept]
    kept_proposal = _narrowed(proposal, len(confidences)) if confidences else None
    return Drafted(kept_proposal, confidences, num_drafted, seconds)


def ids(tokens: mx.array) -> list[int]:
    """Drafts [1, w] on the host."""
    return [int(token) for token in np.array(tokens)[0]]


def _propose(
    drafter: Drafter, state: Any, anchor: mx.array, width: int, draw: Draw, pace: _Reader | None
) -> tuple[Proposal | None, int]:
    """A proposal, and how many drafts were computed for it."""
    if pace is not None and isinstance(drafter, StoppingDrafter):
        proposal = drafter.propose_while(state, anchor, width, draw, pace)
        if pace.num_computed:
            return proposal, pace.num_computed
    else:
        proposal = drafter.propose(state, anchor, width, draw)
    return proposal, 0 if proposal is None else proposal.width


def _lawful(proposal: Proposal, grammar: Grammar) -> Proposal | None:
    """Cut a proposal at the first draft that the grammar forbids.

    A draft that was drawn must stay to be rejected: leaving it out when it is forbidden, and only then,
    would make what takes its place too likely.
    """
    legal = grammar.num_legal(ids(proposal.tokens))
    width = min(legal + (proposal.q is not None), proposal.width)
    if width == proposal.width:
        return proposal
    return _narrowed(proposal, width) if width else None


def _narrowed(proposal: Proposal, width: int) -> Proposal:
    """The first `width` drafts."""
    q, confidence = proposal.q, proposal.confidence
    return Proposal(
        proposal.tokens[:, :width],
        None if q is None else q[:, :width],
        None if confidence is None else confidence[:, :width],
    )
