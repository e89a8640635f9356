"""The adaptive width on simulated rounds: costs and acceptances decide, and change its mind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from localspec.engine.costs import Costs, CostTable
from localspec.engine.drawing import Drawing
from localspec.engine.policy import FixedWidth, Outcome, WidthPolicy
from localspec.engine.width import AdaptiveWidth, Experience

MOST = 8
Text = Callable[[np.random.Generator], tuple[Sequence[float | None], Sequence[float]]]


class Machine:
    """Rounds whose true costs are known: a step takes 1, a draft and a verified row their own."""

    def __init__(self, draft: float = 0.1, draft_row: float = 0.01, row: float = 0.1) -> None:
        self.draft, self.draft_row, self.row = draft, draft_row, row
        self.rng = np.random.default_rng(0)
        self.depth = 100
        self.noise = 0.03

    def run(self, policy: WidthPolicy, text: Text, rounds: int) -> tuple[int, float]:
        """Tokens, and the time they took."""
        tokens, seconds = 0, 0.0
        for _ in range(rounds):
            was_plain = policy.plain_next
            width = policy.choose(MOST, self.depth, greedy=True)
            confidences, chances = text(self.rng)
            kept, draft_s = 0, 0.0
            if width:
                draft_s = self.draft + self.draft_row * width
                kept = policy.cut(list(confidences[:width]), certain=True)
            accepted = 0
            while accepted < kept and self.rng.random() < chances[accepted]:
                accepted += 1
            rest_s = 1.0 + self.row * kept
            jitter = 1 + self.noise * abs(self.rng.standard_normal())
            shown = [*confidences[:kept]]
            ahead = was_plain and not width
            policy.learn(Outcome(width, shown, accepted, draft_s * jitter, rest_s * jitter, ahead))
            tokens, seconds = tokens + accepted + 1, seconds + draft_s + rest_s
        return tokens, seconds

    def speed(self, policy: WidthPolicy, text: Text, rounds: int) -> float:
        tokens, seconds = self.run(policy, text, rounds)
        return tokens / seconds


def steady(chance: float) -> Text:
    return lambda rng: ([chance] * MOST, [chance] * MOST)


def varied(rng: np.random.Generator) -> tuple[list[float], list[float]]:
    """Easy and hard places, which the drafter tells apart."""
    chance = 0.95 if rng.random() < 0.4 else 0.15
    return [chance] * MOST, [chance] * MOST


def best_fixed(text: Text, rounds: int = 1500, **machine: float) -> float:
    return max(
        Machine(**machine).speed(FixedWidth(width, Drawing()), text, rounds)
        for width in range(MOST + 1)
    )


@pytest.mark.parametrize("chance", [0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("row", [0.02, 0.1, 0.3])
def test_steady_text_gets_nearly_the_best_fixed_width(chance: float, row: float) -> None:
    speed = Machine(row=row).speed(AdaptiveWidth(Experience()), steady(chance), 1500)
    assert speed > 0.97 * best_fixed(steady(chance), row=row)


def test_varied_text_gets_more_than_any_fixed_width() -> None:
    speed = Machine().speed(AdaptiveWidth(Experience()), varied, 1500)
    assert speed > 1.05 * best_fixed(varied)


def test_confidences_are_calibrated() -> None:
    def boastful(rng: np.random.Generator) -> tuple[list[float], list[float]]:
        return [0.97] * MOST, [0.5] * MOST

    speed = Machine(row=0.2).speed(AdaptiveWidth(Experience()), boastful, 1500)
    assert speed > 0.97 * best_fixed(boastful, row=0.2)


@pytest.mark.parametrize(("draft", "row"), [(0.05, 0.05), (0.2, 0.1), (0.3, 0.5), (0.8, 0.3)])
@pytest.mark.parametrize("confidence", [0.1, 0.9])
def test_a_useless_drafter_costs_three_percent_at_most(
    draft: float, row: float, confidence: float
) -> None:
    useless: Text = lambda rng: ([confidence] * MOST, [0.0] * MOST)  # noqa: E731
    tokens, seconds = Machine(draft, 0.0, row).run(AdaptiveWidth(Experience()), useless, 500)
    assert tokens == 500
    assert seconds < 500 / 0.97
    # And over many short requests.
    experience, seconds = Experience(), 0.0
    for _ in range(10):
        seconds += Machine(draft, 0.0, row).run(AdaptiveWidth(experience), useless, 50)[1]
    assert seconds < 500 / 0.97
    # And over all kinds of text, whatever its card claims of each.
    kinds = ("code", "math", "chat", "editing")
    experience, seconds = Experience(claims=dict.fromkeys((*kinds, ""), 0.8)), 0.0
    for turn in range(12):
        policy = AdaptiveWidth(experience, kinds[turn % len(kinds)])
        seconds += Machine(draft, 0.0, row).run(policy, useless, 50)[1]
    assert seconds < 600 / 0.97


def test_kinds_of_text_are_told_apart() -> None:
    experience, machine = Experience(), Machine()
    texts = {"code": steady(0.9), "chat": steady(0.0)}
    for _ in range(4):
        for kind, text in texts.items():
            machine.run(AdaptiveWidth(experience, kind), text, 60)
    speeds = {
        kind: machine.speed(AdaptiveWidth(experience, kind), text, 60)
        for kind, text in texts.items()
    }
    assert speeds["code"] > 0.95 * best_fixed(texts["code"])
    assert speeds["chat"] > 0.97


def test_a_card_that_claims_too_much_is_not_believed_elsewhere() -> None:
    experience = Experience(claims={"": 0.8, "code": 0.8, "math": 0.8})
    Machine().run(AdaptiveWidth(experience, "code"), steady(0.1), 100)
    assert experience.of("math").acceptance < 0.4
    good = Experience(claims={"": 0.8, "code": 0.8, "math": 0.7})
    Machine().run(AdaptiveWidth(good, "code"), steady(0.7), 100)
    assert good.of("math").acceptance == 0.7


def test_what_is_foretold_decides_when_to_ask() -> None:
    experience = Experience()
    experience.costs.learn_plain(10, 1.0)
    policy = AdaptiveWidth(experience)
    policy.choose(MOST, 10, greedy=True)
    policy.foresee([])
    assert policy.plain_next
    assert policy.choose(MOST, 10, greedy=True) == 0
    policy.foresee([0.95, 0.9])
    assert not policy.plain_next
    assert policy.choose(MOST, 10, greedy=True) > 0
    policy.cut([0.95, 0.9], certain=True)
    policy.learn(Outcome(2, [0.95, 0.9], 2, 1e-3, 1.2))
    # What does not promise enough is tried now and then all the same.
    policy.foresee([0.02])
    waits = 0
    while policy.plain_next:
        assert policy.choose(MOST, 10, greedy=True) == 0
        waits += 1
        if policy.plain_next:
            policy.foresee([0.02])
    assert 8 <= waits <= 96


def test_it_parks_and_comes_back_within_tens_of_rounds() -> None:
    machine, policy = Machine(), AdaptiveWidth(Experience())
    machine.run(policy, steady(0.0), 500)
    assert policy.parked
    machine.run(policy, steady(0.9), 60)
    assert machine.speed(policy, steady(0.9), 100) > 0.9 * best_fixed(steady(0.9))
    machine.run(policy, steady(0.0), 40)
    assert machine.speed(policy, steady(0.0), 100) > 0.95


def test_a_deeper_context_makes_it_narrow() -> None:
    machine, policy = Machine(row=0.05), AdaptiveWidth(Experience())
    machine.run(policy, steady(0.8), 100)
    for _ in range(40):
        machine.row += 0.01
        machine.run(policy, steady(0.8), 10)
    assert machine.speed(policy, steady(0.8), 300) > 0.93 * best_fixed(steady(0.8), row=machine.row)


def test_a_slow_machine_for_a_while_does_not_park_a_good_drafter() -> None:
    machine, policy = Machine(), AdaptiveWidth(Experience())
    machine.run(policy, steady(0.9), 100)
    machine.noise = 1.0
    machine.run(policy, steady(0.9), 100)
    machine.noise = 0.03
    assert machine.speed(policy, steady(0.9), 200) > 0.93 * best_fixed(steady(0.9))


def test_a_measured_table_is_used_from_the_first_round() -> None:
    table = CostTable(
        depths=(0, 1000),
        widths=(0, 1, 8),
        draft=((0.0, 0.1, 0.1), (0.0, 0.1, 0.1)),
        verify=((1.0, 1.01, 1.08), (1.0, 2.0, 9.0)),
        plain=(1.0, 1.0),
    )
    shallow = AdaptiveWidth(Experience(Costs(table)))
    deep = AdaptiveWidth(Experience(Costs(table)))
    for policy, depth in ((shallow, 0), (deep, 1000)):
        while policy.choose(MOST, depth, greedy=True) == 0:
            policy.learn(Outcome(0, [], 0, None, 1.0, True))
    assert shallow.cut([0.9] * MOST, certain=True) == MOST
    assert deep.choose(MOST, 1000, greedy=True) <= 1


def test_a_sampled_decision_looks_at_what_precedes_it_alone() -> None:
    policy = AdaptiveWidth(Experience())
    Machine().run(policy, varied, 300)
    while policy.choose(MOST, 100, greedy=True) == 0:
        policy.learn(Outcome(0, [], 0, None, 1.0, True))
    rng = np.random.default_rng(1)
    widths = set()
    for _ in range(200):
        confidences = [float(c) for c in rng.uniform(0.05, 0.99, MOST)]
        kept = policy.cut(confidences, certain=False)
        widths.add(kept)
        for later in range(kept + 1, MOST):
            changed = confidences[:later] + [float(rng.uniform(0.05, 0.99))] * (MOST - later)
            assert policy.cut(changed, certain=False) == kept
    assert len(widths) > 3


def test_limits_are_kept() -> None:
    policy = AdaptiveWidth(Experience())
    for limit in (0, 1, 2, 8) * 20:
        width = policy.choose(limit, 10, greedy=True)
        assert 0 <= width <= limit
        kept = policy.cut([0.5] * width, certain=True) if width else 0
        policy.learn(Outcome(width, [0.5] * kept, kept, 0.1, 1.0))
    assert FixedWidth(5, Drawing()).choose(3, 10, greedy=True) == 3


def test_drafts_that_can_be_foreseen_are_tried_again_after_they_disappointed() -> None:
    policy = AdaptiveWidth(Experience())
    drafted: list[bool] = []
    ahead = False
    for number in range(500):
        width, kept = policy.choose(4, 100, greedy=True), 0
        if width:
            kept = policy.cut([0.5] * width, certain=True)
            accepted = kept if number >= 200 else 0
            policy.learn(Outcome(width, [0.5] * kept, accepted, 1e-3, 1.02 + 0.15 * kept))
            ahead = False
        else:
            policy.foresee([0.5] * 4)
            following = policy.plain_next
            rest_s = 1.0 if ahead == following else None
            policy.learn(Outcome(0, [], 0, None, rest_s, ahead=ahead and following))
            ahead = following
        drafted.append(kept > 0)
    assert sum(drafted[100:200]) < 15
    assert sum(drafted[300:]) > 150


@pytest.mark.parametrize("confidence", [None, 0.5, 0.9])
@pytest.mark.parametrize(("draft", "row"), [(0.02, 0.1), (0.14, 0.15), (0.3, 0.2), (0.5, 0.1)])
@pytest.mark.parametrize("bad", [60, 125, 400])
def test_it_comes_back_however_long_drafts_were_useless(
    confidence: float | None, draft: float, row: float, bad: int
) -> None:
    machine, policy = Machine(draft, 0.02, row), AdaptiveWidth(Experience())
    told = [confidence] * MOST
    useless, right = (lambda rng, chance=c: (told, [chance] * MOST) for c in (0.0, 1.0))
    machine.run(policy, useless, bad)
    drafted: list[bool] = []
    while sum(drafted[-10:]) < 10:
        machine.run(policy, right, 1)
        drafted.append(not policy.parked)
    # The longest wait between probes is 96 steps.
    assert len(drafted) <= 96 + 20
    assert machine.speed(policy, right, 60) > 0.85 * best_fixed(
        right, 200, draft=draft, draft_row=0.02, row=row
    )


def test_a_card_that_claims_too_much_is_doubted_above_temperature_0_too() -> None:
    experience = Experience(claims={"": 0.8, "code": 0.8, "math": 0.8, "chat": 0.8})
    for kind in ("code", "math"):
        policy = AdaptiveWidth(experience, kind)
        for _ in range(60):
            width = policy.choose(4, 100, greedy=False)
            policy.learn(Outcome(width, [0.8] * width, 0, 0.1, 1.0 + 0.1 * width, width == 0))
    assert experience.of("chat").acceptance < 0.3


class Chain:
    """Drafts one after another, each with its own cost, as long as the policy wants more."""

    def __init__(self, policy: AdaptiveWidth, seed: int = 0) -> None:
        self.policy, self.rng = policy, np.random.default_rng(seed)

    def rounds(self, count: int, chance: float) -> list[int]:
        """Drafts computed in each round; a draft takes 0.2 of a step, a verified row 0.05."""
        lengths = []
        for _ in range(count):
            width, confidences = self.policy.choose(MOST, 100, greedy=False), []
            kept = 0
            while len(confidences) < width:
                confidences.append(chance)
                if not self.policy.wants(confidences):
                    break
                kept = len(confidences)
                if kept == width or not self.policy.wants_more(confidences):
                    break
            accepted = 0
            while accepted < kept and self.rng.random() < chance:
                accepted += 1
            draft_s = 0.2 * len(confidences) if width else None
            rest_s = 1.0 + 0.05 * kept
            self.policy.learn(
                Outcome(len(confidences), confidences[:kept], accepted, draft_s, rest_s, width == 0)
            )
            lengths.append(len(confidences))
        return lengths


def test_a_chain_stops_where_the_next_draft_is_not_worth_its_cost() -> None:
    means = []
    for chance in (0.5, 0.7, 0.95):
        chain = Chain(AdaptiveWidth(Experience()))
        chain.rounds(200, chance)
        means.append(float(np.mean(chain.rounds(200, chance))))
    # The best fixed lengths are 1, 2 and 8: the tokens of which take the least time.
    assert means[0] < 1.6 < means[1] < 4 < means[2]
