"""`auto`: it settles on what gives most, switches without changing the text, and keeps few in memory."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import make_model
from random_drafters import Helped, Wrapped, random_drafter
from tables import Floats

from localspec.drafter_catalog import InstalledDrafter
from localspec.engine import drafters
from localspec.engine.auto import Auto, MakeDrafter
from localspec.engine.bandit import Bandit, Beliefs
from localspec.engine.costs import CostTable
from localspec.engine.generation import Generation
from localspec.engine.parking import Parking
from localspec.engine.policy import Outcome
from localspec.engine.prefixes import PrefixCache
from localspec.engine.request import Request
from localspec.engine.sampling import SamplingParams
from localspec.engine.target import Target
from localspec.engine.trial import trial_costs
from localspec.engine.width import Experience
from localspec.errors import DrafterMismatch
from localspec.models.drafter import Drafter
from localspec.models.ngram import NgramDrafter
from localspec.provenance import TRAINING_FILE

VOCAB = 12
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
KINDS = ("code", "math", "chat", "editing")


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(make_model("llama", vocab_size=VOCAB, num_hidden_layers=4))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds take what they took on a quiet machine: a step 1, a draft 0.1 of one, a row 0.05."""

    def outcome(*values: Any, ahead: bool) -> Outcome:
        real = Outcome(*values, ahead=ahead)
        draft_s = None if real.draft_s is None else 0.1 * real.num_drafted
        rest_s = None if real.rest_s is None else 1 + 0.05 * len(real.confidences)
        return real._replace(draft_s=draft_s, rest_s=rest_s)

    monkeypatch.setattr("localspec.engine.generation.Outcome", outcome)


def loader(drafter: Drafter, loaded: list[str], name: str) -> MakeDrafter:
    def make() -> tuple[Drafter, Experience]:
        loaded.append(name)
        return drafter, Experience()

    return make


def make_auto(target: Target, loaded: list[str], most: int = 2) -> Auto:
    names = ("dflash", "eagle3", "mtp")
    loaders = {n: loader(random_drafter(n, target, seed=1), loaded, n) for n in names}
    return Auto({"ngram": (NgramDrafter(), Experience())}, loaders, most=most)


def run(target: Target, drafter: Drafter | None, request: Request, **more: Any) -> Generation:
    generation = Generation(target, drafter, request, **more)
    for _ in generation.run():
        pass
    return generation


@pytest.mark.parametrize("most", [2, 3])
def test_switching_in_the_middle_changes_no_token(
    target: Target, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("localspec.engine.auto_width._SEGMENT", 3)
    monkeypatch.setattr("localspec.engine.auto_width._PLAIN_SEGMENT", 2)
    rng = np.random.default_rng(0)

    def any_arm(
        self: Bandit, kind: str, among: Sequence[str] | None = None, **options: Any
    ) -> str | None:
        name = rng.choice([*(among or self.arms), "plain"])
        return None if name == "plain" else str(name)

    monkeypatch.setattr(Bandit, "choose", any_arm)
    auto = make_auto(target, [], most)
    prefixes = PrefixCache(2**28)
    tokens = list(PROMPT)
    arms: set[str] = set()
    for _ in range(3):
        plain = run(target, None, Request(tokens, 40))
        played = run(target, auto, Request(tokens, 40), prefixes=prefixes)
        assert played.tokens == plain.tokens
        arms |= set(played.stats.arms)
        # The next turn goes on from what was kept.
        tokens = [*played.tokens, 7, 7]
    assert len(arms) >= 4
    assert played.stats.cached_tokens > 40


def test_only_arms_in_memory_are_chosen_in_the_middle_of_an_answer(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.engine.auto_width._SEGMENT", 3)
    auto = make_auto(target, [])
    generation = Generation(target, auto, Request(PROMPT, 60, kind="chat"))
    generation.step()
    # The best by far is the one that is not there.
    auto.bandit.learn("mtp", "chat", 900, 100)
    auto.bandit.learn("eagle3", "chat", 300, 100)
    for _ in range(12):
        generation.step()
    assert "mtp" not in generation.stats.arms
    assert generation.stats.arms["eagle3"] >= 3
    assert "ngram" not in generation.stats.arms


def test_an_arm_that_another_conversation_drives_out_is_replaced_and_changes_no_token(
    target: Target,
) -> None:
    """Also while a plain step of its wait is under way, and for one whose taps were never kept."""
    plain = run(target, None, Request(PROMPT, 80)).tokens
    for steps in range(2, 30, 3):
        auto = make_auto(target, [])
        first = Generation(target, auto, Request(PROMPT, 80, kind="chat"))
        for _ in range(steps):
            first.step()
        auto.bandit.learn("mtp", "code", 900, 100)
        for name in ("dflash", "eagle3"):
            auto.bandit.learn(name, "", 100, 100)
        run(target, auto, Request(PROMPT, 4, kind="code"))
        assert "mtp" in auto.names
        for _ in first.run():
            pass
        assert first.tokens == plain


def test_the_arm_that_was_chosen_reads_the_prompt_and_has_a_fixed_width(target: Target) -> None:
    auto = make_auto(target, [])
    read: dict[str, list[int]] = {}

    def watched(name: str, drafter: Drafter) -> Drafter:
        class Watched(Wrapped):
            def observe(self, state: Any, next_tokens: Any, taps: Any) -> None:
                read.setdefault(name, []).append(next_tokens.shape[1])
                super().observe(state, next_tokens, taps)

        return Watched(drafter)

    auto._drafters = {name: watched(name, each) for name, each in auto._drafters.items()}
    auto.bandit.learn("eagle3", "code", 900, 100)
    for width in (None, 2):
        read.clear()
        generation = Generation(target, auto, Request(PROMPT, 20, width=width, kind="code"))
        generation.step()
        assert read == {"eagle3": [len(PROMPT) - 1]}
    for _ in generation.run():
        pass
    assert set(read) == set(generation.stats.arms) == {"eagle3"}
    assert generation.stats.widths[2] > 0
    assert len(generation.stats.widths) == 3
    # Who fixes the width wants drafts, even where plain decoding would be chosen.
    for name in auto.bandit.arms:
        auto.bandit.learn(name, "math", 1, 1000)
    assert auto.prepare("math") is None
    fixed = run(target, auto, Request(PROMPT, 20, width=2, kind="math"))
    assert fixed.stats.proposed > 0


def test_each_arm_learns_by_itself_how_its_drafts_are_made(target: Target) -> None:
    auto = make_auto(target, [])
    auto.bandit.learn("eagle3", "chat", 900, 100)
    request = Request(PROMPT, 40, SamplingParams(temperature=1.0), width=2, kind="chat")
    run(target, auto, request)
    assert auto.experience("eagle3").drawing.sampled > 0
    assert auto.experience("dflash").drawing.sampled == 0


def test_it_settles_on_the_drafter_that_is_right(target: Target) -> None:
    plain = run(target, None, Request(PROMPT, 400)).tokens

    class Right(Helped):
        def _num_right(self, width: int) -> int:
            return width

    good = Right(random_drafter("dflash", target, seed=1), plain)
    bad = random_drafter("dflash", target, seed=2)
    loaded: list[str] = []
    loaders = {"bad": loader(bad, loaded, "bad"), "good": loader(good, loaded, "good")}
    auto = Auto({}, loaders)
    generation = run(target, auto, Request(PROMPT, 400))
    assert generation.tokens == plain
    # Once it parks, the other one takes over.
    assert generation.stats.arms["bad"] < 20
    assert generation.stats.accepted_length > 2.5
    again = run(target, auto, Request(PROMPT, 200))
    assert again.stats.arms["good"] > 0.9 * again.stats.rounds


def test_two_are_in_memory_and_broken_ones_are_forgotten(target: Target) -> None:
    loaded: list[str] = []
    auto = make_auto(target, loaded)
    assert loaded == ["dflash", "eagle3"]
    assert auto.names == ["ngram", "dflash", "eagle3"]
    auto.bandit.learn("dflash", "chat", 50, 100)
    auto.bandit.learn("eagle3", "chat", 150, 100)
    auto.bandit.learn("mtp", "chat", 500, 100)
    assert auto.prepare("chat") == "mtp"
    assert auto.names == ["ngram", "eagle3", "mtp"]

    def broken() -> tuple[Drafter, Experience]:
        raise DrafterMismatch("too wide")

    notes: list[str] = []
    auto = Auto({"ngram": (NgramDrafter(), Experience())}, {"wide": broken}, notify=notes.append)
    assert auto.names == ["ngram"]
    assert auto.prepare("chat") in ("ngram", None)
    assert notes == ["wide is installed, but cannot be used: too wide"]


def test_where_an_arm_parks_another_takes_over_only_if_it_may_well_do_better() -> None:
    bandit = Bandit({"one": Beliefs(1.3), "two": Beliefs(1.2), "three": Beliefs(1.1)})
    bandit.learn("one", "chat", 10, 13)
    assert bandit.relieve("chat", ["one", "two", "three"], "one") == "two"
    assert bandit.relieve("chat", ["one", "three"], "one") == "three"
    for name in ("two", "three"):
        bandit.learn(name, "chat", 100, 110)
    # Nobody promises anything: it stays, and goes on looking.
    assert bandit.relieve("chat", ["one", "two", "three"], "one") == "one"
    assert bandit.relieve("chat", ["one"], "one") == "one"


def test_an_arm_that_parked_elsewhere_is_asked_at_once_when_it_is_chosen(target: Target) -> None:
    auto = make_auto(target, [])
    parking = auto.experience("dflash").of("code").parking = Parking()
    parking.park(1.0, 90)
    auto.bandit.learn("dflash", "code", 900, 100)
    played = run(target, auto, Request(PROMPT, 12, kind="code"))
    assert played.stats.arms["dflash"] > 0
    assert played.stats.proposed > 0


def test_what_an_arm_takes_to_catch_up_is_not_its_price(target: Target) -> None:
    auto = make_auto(target, [])
    assert auto.prepare("chat") == "dflash"
    policy = auto.begin(auto.new_state(), "chat", None)
    costs = auto.experience("dflash").costs
    for draft_s in (9.0, 0.1):
        while not (width := policy.choose(4, 10, greedy=True)):
            policy.learn(Outcome(0, [], 0, None, 1.0, ahead=True))
        policy.learn(Outcome(width, [0.5] * width, 0, draft_s, 1.0 + 0.05 * width))
    assert costs.draft(width, 10) < 0.3
    assert auto.bandit.arms["dflash"].rate("chat") > 0.8


def test_a_trial_tells_what_drafts_and_passes_cost(target: Target) -> None:
    class Slow(Wrapped):
        def propose(self, state: Any, anchor: Any, width: int, draw: Any) -> Any:
            time.sleep(0.02 * width)
            return super().propose(state, anchor, width, draw)

    table = trial_costs(target, Slow(random_drafter("dflash", target, seed=1)))
    assert table.widths == (0, 1, 4)
    assert table.draft_at(0, 0) == 0
    assert 0.02 < table.draft_at(1, 0) < table.draft_at(4, 0)
    assert table.draft_at(4, 0) > 0.08
    assert 0 < table.plain_at(0) == table.verify_at(0, 0)
    # Steps and passes are the target's, whoever drafts.
    other = trial_costs(target, random_drafter("eagle3", target, seed=1), table)
    assert [other.verify_at(w, 0) for w in (0, 1, 4)] == [table.verify_at(w, 0) for w in (0, 1, 4)]
    assert other.draft_at(4, 0) < table.draft_at(4, 0)
    # So expensive a drafter promises less than plain decoding, however good it is.
    beliefs = Beliefs()
    beliefs.expect({"": 0.9, "code": 0.95}, table)
    assert beliefs.rate("code") < 1


def test_a_card_says_what_to_expect_by_kind(tmp_path: Path) -> None:
    def promised(**lengths: float) -> Beliefs:
        card = {"accepted_length": 2.0, "width": 4, "accepted_length_by_kind": lengths}
        (tmp_path / TRAINING_FILE).write_text(json.dumps(card))
        return drafters.promised(InstalledDrafter("mine", "dfly", tmp_path))

    beliefs = promised(code=2.5, self=1.5)
    assert beliefs.rate("code") > beliefs.rate("") > beliefs.rate("chat") > 1
    # By hand: 0.5188 is the chance that gives 2.0; two drafts take 0.18 + 1.2 steps.
    assert beliefs.rate("") == pytest.approx((1 + 0.5188 + 0.5188**2) / 1.38, abs=1e-3)
    assert beliefs.rate("editing") > beliefs.rate("code")
    # What it gives elsewhere tells something of every kind.
    beliefs.add("math", 100, 100)
    assert 1.0 < beliefs.rate("code") < promised(code=2.5, self=1.5).rate("code")
    (tmp_path / TRAINING_FILE).unlink()
    assert drafters.promised(InstalledDrafter("mine", "dfly", tmp_path)) == Beliefs()


RATES = {
    "dfly": (1.9, 1.5, 1.3, 1.6),
    "dspark": (1.8, 1.7, 1.35, 1.6),
    "dflash": (1.7, 1.5, 1.25, 1.5),
    "dflare": (1.6, 1.4, 1.2, 1.5),
    "eagle3": (1.4, 1.3, 1.1, 1.3),
    "mtp": (1.2, 1.2, 1.05, 1.2),
    "ngram": (1.1, 1.05, 1.0, 2.4),
}


# Each kind has a best arm of its own.
SPREAD_RATES = {
    "dfly": (1.5, 1.9, 1.2, 1.5),
    "dspark": (1.6, 1.6, 1.35, 1.9),
    "dflash": (1.3, 1.5, 1.25, 1.2),
    "mtp": (1.2, 1.2, 1.2, 1.2),
    "ngram": (1.2, 1.05, 1.0, 1.7),
}


def play(
    rates: dict[str, tuple[float, ...]], seed: int, boast: float = 1.0
) -> tuple[Floats, Floats, Floats]:
    """A mixed stream of 60 prompts, by kind: what the arms that were chosen give, of what the best fixed
    one does, in the second half and over all; and of plain speed, over all.

    Args:
        boast: what cards promise, over what is true.
    """
    rng = np.random.default_rng(seed)

    # Cards promise what rates are, to some per cent.
    def promised(rate: tuple[float, ...]) -> Beliefs:
        off = np.exp(0.08 * rng.standard_normal() + 0.04 * rng.standard_normal(4))
        guesses = dict(zip(KINDS, boast * np.array(rate) * off, strict=True))
        return Beliefs(float(np.mean(list(guesses.values())[:3])), guesses, weight=36.0)

    bandit = Bandit({name: promised(rate) for name, rate in rates.items()})
    bandit.arms["ngram"] = Beliefs(1.15, {"editing": 2.0})
    got: list[list[tuple[int, float]]] = [[] for _ in KINDS]
    rounds, cost = 80, 1.4
    for prompt in range(60):
        # Every kind as often in both halves.
        kind = prompt % 4
        name = bandit.choose(KINDS[kind])
        got[kind].append((prompt, 1.0 if name is None else rates[name][kind]))
        if name is not None:
            # A round commits a token, and drafts that stand as chance has it.
            tokens = rounds + rng.poisson(rounds * (cost * rates[name][kind] - 1))
            bandit.learn(name, KINDS[kind], float(tokens), rounds * cost)
    best = np.array([max(1.0, *(rate[kind] for rate in rates.values())) for kind in range(4)])
    late = np.array([np.mean([rate for prompt, rate in each if prompt >= 30]) for each in got])
    whole = np.array([np.mean([rate for _, rate in each]) for each in got])
    return late / best, whole / best, whole


@pytest.mark.parametrize("rates", [RATES, SPREAD_RATES])
def test_a_mixed_stream_ends_near_the_best_fixed_choice_of_each_kind(
    rates: dict[str, tuple[float, ...]],
) -> None:
    plays = [play(rates, seed) for seed in range(40)]
    late = np.array([end for end, _, _ in plays])
    assert late.mean(axis=0).min() > 0.95
    # Of half the streams, on the worst kind.
    assert np.median(late.min(axis=1)) > 0.95
    assert late.min() > 0.8
    assert np.mean([whole for _, whole, _ in plays]) > 0.93


def test_useless_arms_are_given_up_soon() -> None:
    # Far below what a drafter that parks gives, and all cards claim otherwise.
    useless = dict.fromkeys(RATES, (0.85, 0.85, 0.85, 0.85))
    plays = [play(useless, seed, boast=1.4) for seed in range(20)]
    assert np.mean([late for late, _, _ in plays]) > 0.985
    assert np.mean([whole for _, _, whole in plays]) > 0.965


def test_where_one_card_claimed_too_much_the_others_are_believed_less() -> None:
    table = CostTable((0,), (0, 1), ((0.0, 0.1),), ((1.0, 1.1),), (1.0,))
    arms = {name: Beliefs() for name in ("first", "second")}
    for name, chance in (("first", 0.8), ("second", 0.7)):
        arms[name].expect({"": chance, "code": chance}, table)
    bandit = Bandit(arms)
    before = bandit.rate("second", "code")
    for _ in range(60):
        bandit.learn("first", "code", 1.1, 1.0)
    assert bandit.rate("second", "code") < 0.85 * before
    # Of its own claim it has given too little already; that is not counted twice.
    assert bandit.trust("first") == 1
    # What an arm gave itself counts as it is.
    for _ in range(500):
        bandit.learn("second", "code", 1.6, 1.0)
    assert bandit.rate("second", "code") > 1.5
    assert bandit.choose("code") == "second"


@pytest.mark.parametrize("lead", ["dflash", "none"])
def test_ngram_drafts_help_out_where_text_repeats_and_change_no_token(
    target: Target, lead: str
) -> None:
    plain = run(target, None, Request(PROMPT, 150))
    loaders = {"dflash": loader(random_drafter("dflash", target, seed=1), [], "dflash")}
    auto = Auto({"ngram": (NgramDrafter(), Experience())}, loaders)
    # One is far better than the other, they say; or nothing pays.
    for name in ("dflash", "ngram"):
        for _ in range(50):
            auto.bandit.learn(name, "chat", 200 if name == lead else 50, 100)
    known = replace(auto.bandit.arms["ngram"].kinds["chat"])
    played = run(target, auto, Request(PROMPT, 150, kind="chat"))
    assert played.tokens == plain.tokens
    assert played.stats.arms["ngram"] > 5
    assert played.stats.arms[lead] > 5
    assert played.stats.rounds < 0.9 * plain.stats.rounds
    # What came counts for the one that led.
    assert auto.bandit.arms["ngram"].kinds["chat"] == known
