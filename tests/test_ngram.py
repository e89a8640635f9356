"""The n-gram drafter: the longest and latest match, its confidence, its manners."""

from __future__ import annotations

import mlx.core as mx

from localspec.models.drafter import Proposal
from localspec.models.ngram import NgramDrafter, NgramState


def state_of(drafter: NgramDrafter, tokens: list[int]) -> NgramState:
    state = drafter.new_state()
    drafter.observe(state, mx.array([tokens]), None)
    return state


def propose(drafter: NgramDrafter, state: NgramState, width: int) -> list[int]:
    def never(logits: mx.array) -> tuple[mx.array, None]:
        raise AssertionError("the n-gram drafter draws nothing")

    proposal = drafter.propose(state, mx.array([state.tokens[-1]]), width, never)
    if proposal is None:
        return []
    assert isinstance(proposal, Proposal)
    assert proposal.q is None
    assert proposal.confidence is not None
    assert proposal.confidence.shape == proposal.tokens.shape == (1, proposal.width)
    (tokens,) = proposal.tokens.tolist()
    return list(tokens)


def test_the_longest_match_wins() -> None:
    drafter = NgramDrafter()
    tokens = [1, 2, 3, 4, 50, 9, 9, 3, 4, 60, 8, 1, 2, 3, 4]
    assert propose(drafter, state_of(drafter, tokens), 1) == [50]


def test_the_latest_of_equal_matches_wins() -> None:
    drafter = NgramDrafter()
    tokens = [7, 3, 4, 50, 8, 3, 4, 60, 9, 3, 4]
    assert propose(drafter, state_of(drafter, tokens), 1) == [60]


def test_repetition_goes_on_into_its_own_copy() -> None:
    drafter = NgramDrafter()
    state = state_of(drafter, [1, 2, 3] * 6)
    assert propose(drafter, state, 7) == [1, 2, 3, 1, 2, 3, 1]


def test_nothing_is_proposed_without_a_match() -> None:
    drafter = NgramDrafter()
    assert propose(drafter, state_of(drafter, [1, 2, 3, 4, 5]), 4) == []
    assert propose(drafter, state_of(drafter, [1]), 4) == []
    assert drafter.propose(drafter.new_state(), mx.array([1]), 4, lambda x: (x, None)) is None


def test_observing_in_chunks_is_observing_at_once() -> None:
    drafter = NgramDrafter()
    tokens = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2, 5, 1, 2]
    whole, parts = state_of(drafter, tokens), drafter.new_state()
    for start in range(0, len(tokens), 3):
        drafter.observe(parts, mx.array([tokens[start : start + 3]]), None)
    assert whole == parts


def test_proposing_leaves_the_state_as_it_was() -> None:
    drafter = NgramDrafter()
    state, again = (state_of(drafter, [1, 2, 3, 4, 1, 2]) for _ in range(2))
    propose(drafter, state, 4)
    assert state == again


def test_confidence_is_learnt_from_hits_and_misses() -> None:
    drafter = NgramDrafter()
    good = state_of(drafter, [1, 2, 3, 4, 5, 6, 7, 8] * 8)
    bad = state_of(drafter, [token for n in range(40) for token in (1, 2, 10 + n)])
    fresh = drafter.new_state()
    assert good.confidence(16) > 0.9 > fresh.confidence(2) > bad.confidence(2)
    # What is almost never right is not worth a row of the verify pass.
    assert propose(drafter, bad, 8) == []


def test_widths_are_kept() -> None:
    drafter = NgramDrafter(max_width=16)
    state = state_of(drafter, list(range(40)) * 2)
    for width in range(1, 17):
        assert propose(drafter, state, width) == [n % 40 for n in range(width)]


def test_it_foretells_what_it_would_propose() -> None:
    drafter = NgramDrafter()
    for tokens in ([1, 2, 3, 4, 1, 2], [1, 2, 1, 2, 1, 2], [1, 2, 3, 4, 5], [1]):
        state = state_of(drafter, tokens)
        assert drafter.foretells(state)
        foretold = list(drafter.foretell(state, 4))
        assert len(foretold) == len(propose(drafter, state, 4))
    assert foretold == []
