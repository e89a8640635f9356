"""Grammars: the law is the target's, restricted row by row, with and without drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from byte_tokens import END, SIZE, THINK, THOUGHT, grammar_tokenizer
from llguidance import LLTokenizer
from tables import Floats, TableDrafter, TableTarget
from test_lossless import p_value

from localspec.engine import drafting
from localspec.engine.generation import Generation
from localspec.engine.grammar import Grammar, restrict
from localspec.engine.request import Committed, Request
from localspec.engine.sampling import SamplingParams
from localspec.errors import UsageError
from localspec.models.drafter import Draw, Proposal

VOCAB, RUNS, PROMPT = 5, 5000, [4]


class Rising:
    """Allows a token that is not below the one before it; token 0 may always come."""

    def __init__(self) -> None:
        self.said = list(PROMPT)

    @staticmethod
    def allowed(before: int) -> list[int]:
        return [token for token in range(VOCAB) if token == 0 or token >= before]

    def num_legal(self, drafts: Sequence[int]) -> int:
        last = self.said[-1]
        for index, token in enumerate(drafts):
            if token not in self.allowed(last):
                return index
            last = token
        return len(drafts)

    def masks(self, drafts: Sequence[int]) -> mx.array:
        rows = [sum(1 << t for t in self.allowed(before)) for before in [self.said[-1], *drafts]]
        return mx.array(np.array(rows, dtype=np.uint32)[:, None])

    def commit(self, tokens: Sequence[int]) -> None:
        self.said += tokens


def restricted_law(target: TableTarget, num_tokens: int) -> Floats:
    law = np.zeros((VOCAB,) * num_tokens)

    def walk(said: list[int], probability: float) -> None:
        if len(said) == num_tokens:
            law[tuple(said)] = probability
            return
        tokens = [0, *PROMPT, *said]
        weights = np.exp(target.logits[tokens[-2], tokens[-1]].astype(np.float64))
        keep = np.isin(np.arange(VOCAB), Rising.allowed(tokens[-1]))
        for token, p in enumerate(weights * keep / (weights * keep).sum()):
            walk([*said, token], probability * float(p))

    walk([], 1.0)
    return law


def counts(drafter: Any, runs: int = RUNS) -> Floats:
    target: Any = TableTarget(VOCAB, seed=1)
    seen = np.zeros((VOCAB,) * 3)
    for seed in range(runs):
        grammar: Any = Rising()
        request = Request(
            PROMPT, 3, SamplingParams(temperature=1.0), seed, width=1 + seed % 3, grammar=grammar
        )
        run = Generation(target, drafter, request)
        for _ in run.run():
            pass
        seen[tuple(run.tokens[len(PROMPT) :])] += 1
    return seen


@pytest.mark.parametrize("kind", ["sampled", "greedy", "none"])
def test_drafts_keep_the_restricted_law(kind: str) -> None:
    drafter = None if kind == "none" else TableDrafter(VOCAB, 2, greedy=kind == "greedy")
    law = restricted_law(TableTarget(VOCAB, seed=1), 3)
    assert p_value(counts(drafter, runs=2500), law) > 1e-3


def test_the_test_notices_forbidden_drafts_that_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = drafting._lawful

    def wrong(proposal: Proposal, grammar: Any) -> Proposal | None:
        """The mistake that the comment warns of: a drawn draft that is forbidden is left out."""
        kept = right(proposal, grammar)
        legal = grammar.num_legal(proposal.tokens[0].tolist())
        if kept is None or legal >= kept.width:
            return kept
        if not legal:
            return None
        assert kept.q is not None
        return Proposal(kept.tokens[:, :legal], kept.q[:, :legal])

    monkeypatch.setattr(drafting, "_lawful", wrong)
    law = restricted_law(TableTarget(VOCAB, seed=1), 3)
    assert p_value(counts(TableDrafter(VOCAB, 2)), law) < 1e-4


# Grammars of llguidance, over a vocabulary of bytes and a few special tokens.


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return grammar_tokenizer()


DIGITS = 'start: /[0-9]{2,4}/ "!"'


def allowed(masks: mx.array) -> list[set[int]]:
    logits = restrict(mx.zeros((1, masks.shape[0], SIZE)), masks)
    return [set(np.flatnonzero(np.array(row) == 0).tolist()) for row in logits[0]]


def test_masks_are_those_of_walking_token_by_token(tokenizer: LLTokenizer) -> None:
    digits, ends = set(b"0123456789"), set(b"!")
    grammar = Grammar(tokenizer, DIGITS)
    grammar.commit(b"1")
    assert allowed(grammar.masks(list(b"23!"))) == [digits, digits | ends, digits | ends, {END}]
    assert grammar.num_legal(list(b"2!3")) == 2
    # Looking ahead changed nothing, and a forbidden draft ends what is known.
    assert allowed(grammar.masks(list(b"x3")))[0] == digits
    grammar.commit(list(b"2!"))
    assert allowed(grammar.masks([])) == [{END}]
    grammar.commit([END])


def test_thoughts_are_free_until_they_end(tokenizer: LLTokenizer) -> None:
    options: dict[str, Any] = {"opens": THINK, "closes": [THOUGHT]}
    digits = set(b"0123456789")
    undecided = Grammar(tokenizer, DIGITS, **options)
    assert allowed(undecided.masks([]))[0] == {THINK, *digits}
    rows = allowed(undecided.masks([THINK, 65, THOUGHT, ord("7")]))
    assert rows[0] == {THINK, *digits}
    assert len(rows[1]) == len(rows[2]) == SIZE
    assert rows[3] == rows[4] == digits
    assert undecided.num_legal([THINK, 65, THOUGHT, ord("7"), 65]) == 4
    undecided.commit([THINK, 65])
    assert undecided.num_legal([66, THOUGHT, 66]) == 2
    undecided.commit([THOUGHT, ord("1")])
    assert allowed(undecided.masks([])) == [digits]
    at_once = Grammar(tokenizer, DIGITS, **options)
    at_once.commit([ord("1")])
    assert allowed(at_once.masks([])) == [digits]
    opened = Grammar(tokenizer, DIGITS, **options, thinking=True)
    assert len(allowed(opened.masks([65]))[1]) == SIZE


def test_a_long_mark_that_ends_thoughts_may_come_in_pieces(tokenizer: LLTokenizer) -> None:
    grammar = Grammar(tokenizer, DIGITS, closes=[1, 2, 3], thinking=True)
    grammar.commit([1, 2])
    assert grammar.num_legal([3, ord("1"), ord("x")]) == 2
    grammar.commit([2, 3, 1, 2])
    assert len(allowed(grammar.masks([]))[0]) == SIZE
    grammar.commit([3])
    assert len(allowed(grammar.masks([]))[0]) == 10


def test_what_cannot_be_enforced_is_refused(tokenizer: LLTokenizer) -> None:
    with pytest.raises(UsageError, match="cannot be enforced"):
        Grammar(tokenizer, "start: nonesuch")
    with pytest.raises(UsageError, match="uniqueItems"):
        Grammar(tokenizer, 'start: %json {"type": "array", "uniqueItems": true}')


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_text_obeys_the_grammar_whatever_is_drafted(
    tokenizer: LLTokenizer, temperature: float
) -> None:
    class Digits(TableDrafter):
        """Right about digits now and then, and never about the end."""

        def __init__(self) -> None:
            super().__init__(2, 0)

        def propose(self, state: Any, anchor: mx.array, width: int, draw: Draw) -> Proposal:
            self.tried = getattr(self, "tried", 0) + 1
            return Proposal(mx.array([[48 + (self.tried + k) % 12 for k in range(width)]]))

    target: Any = TableTarget(SIZE, seed=3)
    for seed in range(8):
        texts = []
        for drafter in (None, Digits()):
            request = Request(
                [1],
                max_tokens=9,
                sampling=SamplingParams(temperature=temperature),
                seed=seed,
                stop_ids=frozenset([END]),
                width=4,
                grammar=Grammar(tokenizer, DIGITS),
            )
            run = Generation(target, drafter, request)
            for _ in run.run():
                pass
            texts.append(run.tokens[1:])
        assert texts[0] == texts[1]
        assert texts[0][-2:] == [ord("!"), END]
        assert bytes(texts[0][:-2]).isdigit()


def test_logprobs_are_the_targets_own() -> None:
    target: Any = TableTarget(VOCAB, seed=1)
    drafter = TableDrafter(VOCAB, 2, greedy=True)
    grammar: Any = Rising()
    request = Request(PROMPT, 20, width=3, logprobs=2, grammar=grammar)
    generation = Generation(target, drafter, request)
    events = [event for event in generation.run() if isinstance(event, Committed)]
    entries = [entry for event in events for entry in event.logprobs or []]
    tokens = generation.tokens
    assert len(entries) == 20
    for index, entry in enumerate(entries):
        before = [0, *tokens][index : index + 2]
        logits = target.logits[before[0], before[1]].astype(np.float64)
        expected = logits - np.log(np.exp(logits).sum())
        assert entry.logprob == pytest.approx(expected[tokens[index + 1]], abs=1e-5)
        best = np.argsort(-expected)[:2]
        assert [token for token, _ in entry.top] == best.tolist()
        assert [value for _, value in entry.top] == pytest.approx(expected[best], abs=1e-5)
