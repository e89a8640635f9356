"""`auto`: it settles on what gives most, switches without changing the text, and keeps few in memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from families import make_model
from random_drafters import Helped, Wrapped, random_drafter

from localspec.engine.auto import Auto, MakeDrafter
from localspec.engine.bandit import Bandit, Beliefs
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

VOCAB = 12
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


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


def test_the_arm_that_leads_is_kept_though_another_helped_out_at_the_end(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = random_drafter("dflash", target, seed=1)
    read: list[int] = []
    observe = drafter.observe

    def counting(state: Any, next_tokens: Any, taps: Any) -> None:
        read.append(next_tokens.shape[1])
        observe(state, next_tokens, taps)

    monkeypatch.setattr(drafter, "observe", counting)
    auto = Auto(
        {"ngram": (NgramDrafter(), Experience())}, {"dflash": loader(drafter, [], "dflash")}
    )
    for _ in range(50):
        auto.bandit.learn("dflash", "chat", 200, 100)
    prefixes = PrefixCache(2**28)
    first = Generation(target, auto, Request(PROMPT, 300, kind="chat"), prefixes=prefixes)
    while first.stats.generated_tokens < 60 or first._width.playing != "ngram":
        first.step()
    first.keep()
    length = len(first.tokens)
    run(target, auto, Request([*first.tokens, 7, 7], 1, kind="chat"), prefixes=prefixes)
    # Nothing is read a second time.
    assert sum(read) <= length + 4
