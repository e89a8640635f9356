"""Drafters side by side on the same prompts, in turns: what each gives, by kind of prompt.

`localspec compare` stands on it, and the benchmarks that set drafters or widths side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from localspec.engine.costs import CostTable
from localspec.engine.metrics import Stats
from localspec.lab.prompts import LabPrompt

Progress = Callable[[int, int], None]

PLAIN = "none"
OVERALL = "overall"
_CHANCE = 0.02
"""That a drafter is called faster than its equal; Student's t of their log-ratios, prompt by prompt."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How every prompt is generated.

    Attributes:
        widths: of drafters whose width is fixed.
    """

    temperature: float = 0.0
    max_tokens: int = 96
    widths: Mapping[str, int] = field(default_factory=dict)


class Runner(Protocol):
    """What generates: a loaded model with a drafter."""

    def run(self, prompt: LabPrompt, settings: Settings, seed: int, width: int | None) -> Stats:
        """Generate one answer, and its figures."""
        ...

    @property
    def memory(self) -> int:
        """Bytes that the last run took at most, and those of the weights that it used."""
        ...

    @property
    def costs(self) -> CostTable | None:
        """What `localspec profile` measured; None: nothing yet."""
        ...


@dataclass(slots=True)
class Figures:
    """Of one drafter on the prompts of one kind; sums over its runs.

    Attributes:
        speeds: tokens a second of each prompt.
        predicted_s: seconds that the profile's costs give for the same rounds; None: no profile.
        memory: most bytes of a run and its weights.
    """

    tokens: int = 0
    rounds: int = 0
    decode_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    proposed: int = 0
    accepted: int = 0
    parked: int = 0
    proposed_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    predicted_s: float | None = None
    memory: int = 0

    def add(self, stats: Stats, costs: CostTable | None, memory: int) -> None:
        self.tokens += stats.generated_tokens
        self.rounds += stats.rounds
        self.decode_s += stats.decode_s
        self.draft_s += stats.draft_s
        self.verify_s += stats.verify_s
        self.proposed += stats.proposed
        self.accepted += stats.accepted
        self.parked += stats.parked
        _add(self.proposed_by_position, stats.proposed_by_position)
        _add(self.accepted_by_position, stats.accepted_by_position)
        _add(self.widths, stats.widths)
        self.speeds.append(stats.tokens_per_second)
        if costs is not None:
            self.predicted_s = (self.predicted_s or 0.0) + predicted_seconds(stats, costs)
        self.memory = max(self.memory, memory)

    @property
    def speed(self) -> float:
        """Tokens a second over all prompts."""
        return self.tokens / self.decode_s if self.decode_s else 0.0

    @property
    def predicted_speed(self) -> float | None:
        """Tokens a second by the profile's costs; None: no profile."""
        return self.tokens / self.predicted_s if self.predicted_s else None

    @property
    def draft_share(self) -> float:
        """Of the time, that of drafting."""
        return self.draft_s / self.decode_s if self.decode_s else 0.0

    @property
    def verify_share(self) -> float:
        """Of the time, that of passes over drafts; the rest is plain steps."""
        return self.verify_s / self.decode_s if self.decode_s else 0.0

    @property
    def accepted_length(self) -> float:
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def acceptance(self) -> list[float]:
        """Of the drafts verified at each position, the share committed."""
        pairs = zip(self.accepted_by_position, self.proposed_by_position, strict=True)
        return [accepted / proposed for accepted, proposed in pairs if proposed]

    def as_dict(self, plain: Figures) -> dict[str, Any]:
        ratio, low, high = ratios(self, plain)
        return {
            "tokens": self.tokens,
            "rounds": self.rounds,
            "accepted_length": self.accepted_length,
            "acceptance_by_position": self.acceptance,
            "widths": self.widths,
            "parked_share": self.parked / self.rounds if self.rounds else 0.0,
            "tokens_per_second": self.speed,
            "predicted_tokens_per_second": self.predicted_speed,
            "ratio": ratio,
            "ratio_quartiles": [low, high],
            "draft_share": self.draft_share,
            "verify_share": self.verify_share,
            "memory": self.memory,
        }


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest on a kind, and whether the next one is really slower."""

    name: str
    runner_up: str | None
    within_noise: bool


@dataclass(slots=True)
class Comparison:
    """All figures.

    Attributes:
        kinds: in the order of the prompts; `overall` comes last.
        figures: by kind and drafter; plain decoding is `none`.
    """

    settings: Settings
    kinds: list[str]
    names: list[str]
    figures: dict[str, dict[str, Figures]]

    def winner(self, kind: str) -> Winner:
        """Of a kind of prompt."""
        figures = self.figures[kind]
        order = sorted(self.names, key=lambda name: -figures[name].speed)
        if len(order) == 1:
            return Winner(order[0], None, False)
        best, second = figures[order[0]], figures[order[1]]
        return Winner(order[0], order[1], not is_faster(best, second))

    def as_dict(self) -> dict[str, Any]:
        return {
            "temperature": self.settings.temperature,
            "max_tokens": self.settings.max_tokens,
            "kinds": {
                kind: {
                    "winner": self.winner(kind).name,
                    "runner_up": self.winner(kind).runner_up,
                    "within_noise": self.winner(kind).within_noise,
                    "prompts": len(self.figures[kind][PLAIN].speeds),
                    "drafters": {
                        name: each.as_dict(self.figures[kind][PLAIN])
                        for name, each in self.figures[kind].items()
                    },
                }
                for kind in self.kinds
            },
        }


def compare(
    runners: Mapping[str, Runner],
    prompts: Sequence[LabPrompt],
    settings: Settings,
    progress: Progress = lambda done, total: None,
) -> Comparison:
    """Send every prompt through every runner, each prompt beginning with another of them.

    Args:
        runners: by the drafter's name; `none`, plain decoding, must be among them.
    """
    assert PLAIN in runners
    names = list(runners)
    kinds = list(dict.fromkeys(prompt.kind for prompt in prompts))
    figures = {kind: {name: Figures() for name in names} for kind in [*kinds, OVERALL]}
    short = Settings(settings.temperature, 8, settings.widths)
    for name, runner in runners.items():
        # The first run of each kernel compiles.
        runner.run(prompts[0], short, 0, settings.widths.get(name))
    for number, prompt in enumerate(prompts):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            runner = runners[name]
            stats = runner.run(prompt, settings, number, settings.widths.get(name))
            for kind in (prompt.kind, OVERALL):
                figures[kind][name].add(stats, runner.costs, runner.memory)
        progress(number + 1, len(prompts))
    return Comparison(settings, [*kinds, OVERALL], names, figures)


def ratios(figures: Figures, plain: Figures) -> tuple[float, float, float]:
    """Of plain speed: over all tokens, and the quartiles over prompts."""
    each = np.array(figures.speeds) / np.array(plain.speeds)
    low, high = np.percentile(each, [25, 75])
    return figures.speed / plain.speed, float(low), float(high)


def is_faster(one: Figures, other: Figures) -> bool:
    """Whether it is no chance, by the prompts in pairs."""
    # Only here: it takes most of a second to import.
    from scipy.stats import t as student

    logs = np.log(np.array(one.speeds) / np.array(other.speeds))
    if len(logs) < 2:
        return False
    sure = float(student.isf(_CHANCE, len(logs) - 1))
    return bool(logs.mean() > sure * logs.std(ddof=1) / math.sqrt(len(logs)))


def predicted_seconds(stats: Stats, costs: CostTable) -> float:
    """What the rounds of a generation should have taken by measured costs."""
    depth = stats.prompt_tokens + stats.generated_tokens // 2
    asked = stats.rounds - stats.parked
    drafting = 0.0
    if stats.drafted and asked:
        drafting = asked * costs.draft_at(stats.drafted / asked, depth)
    plain = stats.parked if stats.drafted else stats.rounds
    rounds = sum(
        (count - (plain if width == 0 else 0)) * costs.verify_at(width, depth)
        for width, count in enumerate(stats.widths)
    )
    return drafting + rounds + plain * costs.plain_at(depth)


def _add(sums: list[int], counts: Iterable[int]) -> None:
    for place, count in enumerate(counts):
        if place == len(sums):
            sums.append(0)
        sums[place] += count
