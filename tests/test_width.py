"""The learnt width: measured costs and acceptances decide, and change its mind."""

from __future__ import annotations

from localspec.engine.width import FixedWidth, LearntWidth


def simulate(policy: LearntWidth, acceptance: float, row_cost: float, rounds: int) -> float:
    """Tokens a second over rounds whose drafts stand while a fixed sequence stays below `acceptance`."""
    tokens, seconds, phase = 0, 0.0, 0.0
    for _ in range(rounds):
        width = policy.choose(8)
        accepted = 0
        while accepted < width:
            phase = (phase + 0.618034) % 1.0
            if phase >= acceptance:
                break
            accepted += 1
        cost = 1.0 + row_cost * width
        policy.learn(width, accepted, cost)
        tokens, seconds = tokens + accepted + 1, seconds + cost
    return tokens / seconds


def test_good_cheap_drafts_are_verified_wide() -> None:
    assert simulate(LearntWidth(), acceptance=0.95, row_cost=0.02, rounds=200) > 3.5


def test_useless_drafts_are_parked() -> None:
    assert simulate(LearntWidth(), acceptance=0.0, row_cost=0.1, rounds=400) > 0.93


def test_dear_drafts_are_kept_narrow() -> None:
    assert simulate(LearntWidth(), acceptance=0.6, row_cost=0.3, rounds=400) > 1.0


def test_it_comes_back_when_the_text_becomes_easy() -> None:
    policy = LearntWidth()
    simulate(policy, acceptance=0.0, row_cost=0.05, rounds=200)
    simulate(policy, acceptance=0.97, row_cost=0.05, rounds=200)
    assert simulate(policy, acceptance=0.97, row_cost=0.05, rounds=50) > 2.5


def test_limits_are_kept() -> None:
    policy = LearntWidth()
    assert all(0 <= policy.choose(limit) <= limit for limit in (0, 1, 2, 8) * 20)
    assert FixedWidth(5).choose(3) == 3
