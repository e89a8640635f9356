"""Which arm the bandit of `auto` plays: by cards at first, then by what arms gave."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tables import Floats

from localspec.drafter_catalog import InstalledDrafter
from localspec.engine import drafters
from localspec.engine.bandit import Bandit, Beliefs
from localspec.engine.costs import CostTable
from localspec.provenance import TRAINING_FILE

KINDS = ("code", "math", "chat", "editing")


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
