"""The loop on a target that is a table: rounds, limits, stops, figures, seeds."""

from __future__ import annotations

import time
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tables import TableDrafter, TableTarget

from localspec.engine.auto import Auto
from localspec.engine.generation import Generation
from localspec.engine.parking import Parking
from localspec.engine.policy import Outcome
from localspec.engine.request import Committed, Finished, Prefilled, Request
from localspec.engine.sampling import SamplingParams
from localspec.engine.width import AdaptiveWidth, Experience
from localspec.errors import ContextOverflow, UsageError
from localspec.models.ngram import NgramDrafter

VOCAB = 12


def run(drafter: Any, request: Request, seed: int = 5) -> tuple[list[int], Generation, list[Any]]:
    target: Any = TableTarget(VOCAB, seed=seed)
    generation = Generation(target, drafter, request)
    events = list(generation.run())
    return generation.tokens[len(request.prompt) :], generation, events


@pytest.mark.parametrize("width", [None, 0, 1, 2, 3, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("prompt", [[3], [3, 1, 4, 1, 5, 9, 2, 6]])
def test_certain_drafts_change_no_token(
    width: int | None, temperature: float, prompt: list[int]
) -> None:
    params = SamplingParams(temperature=temperature, frequency_penalty=0.2)
    plain, _, _ = run(None, Request(prompt, 50, params, seed=9))
    for drafter in (TableDrafter(VOCAB, 2, greedy=True), NgramDrafter()):
        drafted, generation, _ = run(drafter, Request(prompt, 50, params, seed=9, width=width))
        assert drafted == plain
        assert len(plain) == generation.stats.generated_tokens == 50


def test_seeds_decide_sampled_text() -> None:
    params = SamplingParams(temperature=1.0)

    def text(seed: int) -> list[int]:
        return run(TableDrafter(VOCAB, 2), Request([1], 30, params, seed=seed, width=3))[0]

    assert text(1) == text(1)
    assert text(1) != text(2)


@pytest.mark.parametrize("drafter", [None, TableDrafter(VOCAB, 2, greedy=True)])
def test_a_stop_token_ends_the_text_and_is_its_last(drafter: Any) -> None:
    plain, _, _ = run(None, Request([1], 40))
    stop = plain[7]
    first = plain.index(stop)
    tokens, generation, events = run(drafter, Request([1], 40, stop_ids=frozenset({stop})))
    assert tokens == plain[: first + 1]
    assert events[-1] == Finished("stop", generation.stats)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7])
def test_the_limit_is_exact_inside_a_round(max_tokens: int) -> None:
    drafter = TableDrafter(VOCAB, 2, greedy=True)
    tokens, generation, events = run(drafter, Request([1, 2], max_tokens, width=4))
    assert len(tokens) == max_tokens
    assert events[-1] == Finished("length", generation.stats)


def test_the_context_length_ends_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableTarget, "context_length", 10)
    tokens, _, events = run(TableDrafter(VOCAB, 2, greedy=True), Request([1, 2, 3]))
    assert len(tokens) == 7
    assert events[-1].reason == "length"
    with pytest.raises(ContextOverflow, match="10"):
        run(None, Request(list(range(10))))


def test_prefill_goes_in_chunks_and_reports_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.engine.generation.PREFILL_CHUNK", 4)
    _, _, events = run(None, Request([1] * 10, 1))
    assert [e for e in events if isinstance(e, Prefilled)] == [
        Prefilled(4, 9),
        Prefilled(8, 9),
        Prefilled(9, 9),
    ]


def test_figures_agree_with_the_events() -> None:
    drafter = TableDrafter(VOCAB, 2, greedy=True)
    tokens, generation, events = run(drafter, Request([1, 2], 60, width=3))
    rounds = [event for event in events if isinstance(event, Committed)]
    stats = generation.stats
    assert stats.prompt_tokens == 2
    assert stats.rounds == len(rounds)
    assert [token for r in rounds for token in r.tokens] == tokens
    assert stats.accepted == sum(r.num_accepted for r in rounds)
    assert all(len(r.tokens) == r.num_accepted + 1 for r in rounds)
    assert stats.accepted_length == len(tokens) / len(rounds)
    assert stats.proposed_by_position[0] >= stats.proposed_by_position[2]
    assert stats.accepted == sum(stats.accepted_by_position)
    assert 0 < stats.verify_s <= stats.decode_s
    assert 0 < stats.time_to_first_token_s <= stats.prefill_s + stats.decode_s + 1e-3
    assert set(stats.as_dict()) == {
        "prompt_tokens",
        "cached_tokens",
        "generated_tokens",
        "rounds",
        "proposed",
        "accepted",
        "accepted_length",
        "acceptance_by_position",
        "width",
        "widths",
        "drafted",
        "parked_share",
        "arms",
        "tokens_per_second",
        "time_to_first_token_s",
        "prompt_tokens_per_second",
    }


def test_plain_decoding_counts_one_token_a_round() -> None:
    _, generation, _ = run(None, Request([1, 2], 20))
    assert generation.stats.accepted_length == 1.0
    assert generation.stats.proposed == 0
    assert generation.stats.acceptance_by_position == []


@pytest.mark.parametrize(("name", "value"), [("max_tokens", 0), ("width", -1), ("prompt", [])])
def test_senseless_requests_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name):
        Request(**{"prompt": [1], name: value})


def test_only_plain_steps_with_one_under_way_on_both_sides_tell_what_a_step_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = watched(monkeypatch)
    run(TableDrafter(VOCAB, 2, greedy=True), Request([1], 8))
    # The warm-up, then rounds with drafts.
    assert [outcome.ahead for outcome in seen[:4]] == [False, True, True, False]
    assert [outcome.rest_s is None for outcome in seen[:4]] == [True, False, False, True]
    assert seen[4].num_drafted > 0
    assert not seen[4].ahead
    assert seen[4].rest_s is not None


def test_an_answer_that_ends_among_plain_steps_does_not_make_them_seem_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experience = Experience()
    seen = watched(monkeypatch)
    target: Any = TableTarget(VOCAB, seed=5)
    drafter: Any = TableDrafter(VOCAB, 2, greedy=True)
    for _ in Generation(target, drafter, Request([1], 4), experience=experience).run():
        pass
    assert len(seen) == 4
    # The last one was under way while the one before was waited for.
    assert [outcome.rest_s is None for outcome in seen] == [True, False, False, True]
    before = experience.costs.plain(0)
    AdaptiveWidth(experience).learn(seen[-1])
    assert experience.costs.plain(0) == before


class Counting(TableTarget):
    """Says the next number."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size, seed=0)
        numbers = np.arange(vocab_size)
        table = np.zeros((vocab_size,) * 3, dtype=np.float32)
        table[:, numbers, (numbers + 1) % vocab_size] = 9.0
        self._table = mx.array(table)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Outcome]:
    """The rounds that policies learn from."""
    seen: list[Outcome] = []
    learn = AdaptiveWidth.learn

    def watch(self: AdaptiveWidth, outcome: Outcome) -> None:
        seen.append(outcome)
        learn(self, outcome)

    monkeypatch.setattr(AdaptiveWidth, "learn", watch)
    return seen


def test_a_drafter_that_has_nothing_to_say_never_makes_the_device_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = watched(monkeypatch)
    target: Any = Counting(64)
    for _ in Generation(target, NgramDrafter(), Request([2], 60)).run():
        pass
    # All but those of the beginning and the last.
    assert sum(outcome.ahead for outcome in seen) >= 55


@pytest.mark.parametrize(
    "playing", [NgramDrafter(), Auto({"ngram": (NgramDrafter(), Experience())}, {})]
)
def test_a_drafter_that_can_tell_is_asked_as_soon_as_it_has_something_to_say(playing: Any) -> None:
    prompt = [*range(2, 42), *range(2, 6)]
    target: Any = Counting(64)
    experience = Experience() if isinstance(playing, NgramDrafter) else playing.experience("ngram")
    # It parked, elsewhere, for long.
    experience.costs.learn_plain(10, 1.0)
    parking = experience.of("").parking = Parking()
    parking.park(1.0, 90)
    generation = Generation(target, playing, Request(prompt, 30), experience=experience)
    for _ in generation.run():
        pass
    assert generation.tokens == [*prompt, *range(6, 36)]
    assert generation.stats.rounds < 12


def _outcomes(monkeypatch: pytest.MonkeyPatch) -> list[Outcome]:
    told: list[Outcome] = []
    learn = AdaptiveWidth.learn

    def noting(self: AdaptiveWidth, outcome: Outcome) -> None:
        told.append(outcome)
        learn(self, outcome)

    monkeypatch.setattr(AdaptiveWidth, "learn", noting)
    return told


def test_rounds_that_others_share_the_device_with_tell_no_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = _outcomes(monkeypatch)
    target: Any = TableTarget(VOCAB, seed=5)
    drafter = TableDrafter(VOCAB, 2, greedy=True, confident=True)
    generation = Generation(target, drafter, Request([1], 60))
    shared = range(20, 40)
    while generation.finish_reason() is None:
        generation.alone = len(told) not in shared
        generation.step()
    # The first round after them may find its step begun among others'.
    for number, outcome in enumerate(told):
        if number in shared or number == shared.stop:
            assert outcome.rest_s is None
            assert outcome.draft_s is None
    verified = [outcome for outcome in told if outcome.confidences]
    assert any(outcome.rest_s is not None for outcome in verified)
    assert any(told[number].confidences for number in shared)


def test_drafts_among_others_teach_acceptance_and_no_cost() -> None:
    experience = Experience()
    experience.costs.learn_plain(10, 1.0)
    policy = AdaptiveWidth(experience)
    before = [experience.costs.verify(width, 10) for width in range(5)]
    for _ in range(20):
        width = policy.choose(4, 10, greedy=True)
        kept = policy.cut([0.9] * width, certain=True) if width else 0
        policy.learn(Outcome(width, [0.9] * kept, 0, None, None))
    assert [experience.costs.verify(width, 10) for width in range(5)] == before
    assert policy.parked


class Reading(TableDrafter):
    """Reads slowly what it has missed."""

    def observe(self, state: Any, next_tokens: mx.array, taps: mx.array | None) -> None:
        time.sleep(0.002 * next_tokens.shape[1])
        super().observe(state, next_tokens, taps)


def test_what_a_drafter_reads_after_a_wait_is_not_the_price_of_a_draft(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = _outcomes(monkeypatch)
    target: Any = TableTarget(VOCAB, seed=5)
    experience = Experience()
    experience.costs.learn_plain(10, 1e-3)
    experience.of("").parking = Parking(parked=True, _left=30, _probe_loss=9.0)
    drafter = Reading(VOCAB, 2, greedy=True, confident=True)
    generation = Generation(target, drafter, Request([1], 60), experience=experience)
    for _ in generation.run():
        pass
    first = next(outcome for outcome in told if outcome.num_drafted)
    assert told.index(first) > 10
    assert first.draft_s is not None
    # Ten tokens and more that were missed take 20 ms to read.
    assert first.draft_s < 0.015
    assert first.rest_s is None or first.rest_s < 0.015
