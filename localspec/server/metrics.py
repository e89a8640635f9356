"""Counters since the start, in Prometheus' text format."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from localspec.server.engine import Figures


@dataclass(slots=True)
class Metrics:
    """What was done; the routes and the generations count into it."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    failures: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    parked: int = 0
    widths: Counter[int] = field(default_factory=Counter)
    arms: Counter[str] = field(default_factory=Counter)
    prefill_s: float = 0.0
    decode_s: float = 0.0

    def add(self, figures: Figures) -> None:
        """Count a generation that has ended."""
        self.prompt_tokens += figures.prompt_tokens
        self.cached_tokens += figures.cached_tokens
        self.generated_tokens += figures.generated_tokens
        self.rounds += figures.rounds
        self.proposed += figures.proposed
        self.accepted += figures.accepted
        self.parked += figures.parked
        self.widths.update(dict(enumerate(figures.widths)))
        self.arms.update(figures.arms)
        self.prefill_s += figures.prefill_s
        self.decode_s += figures.decode_s

    def text(self, *, running: int, waiting: int) -> str:
        """
        Args:
            running, waiting: generations at this moment.
        """
        lines = [
            *_metric("requests_total", "counter", "Requests by route and status."),
            *(
                f'localspec_requests_total{{route="{route}",status="{status}"}} {count}'
                for (route, status), count in sorted(self.requests.items())
            ),
        ]
        for name, kind, help_text, value in (
            ("running", "gauge", "Generations that hold a place.", running),
            ("waiting", "gauge", "Requests that wait for a place.", waiting),
            ("failures_total", "counter", "Generations that broke.", self.failures),
            ("prompt_tokens_total", "counter", "Tokens of prompts.", self.prompt_tokens),
            ("cached_tokens_total", "counter", "Of them, from the cache.", self.cached_tokens),
            ("generated_tokens_total", "counter", "Committed tokens.", self.generated_tokens),
            ("rounds_total", "counter", "Rounds of decoding.", self.rounds),
            ("drafts_proposed_total", "counter", "Drafts that were verified.", self.proposed),
            ("drafts_accepted_total", "counter", "Drafts that were committed.", self.accepted),
            ("parked_rounds_total", "counter", "Plain steps, drafts not paying.", self.parked),
            ("prefill_seconds_total", "counter", "Time of reading prompts.", self.prefill_s),
            ("decode_seconds_total", "counter", "Time of decoding.", self.decode_s),
        ):
            lines += [*_metric(name, kind, help_text), f"localspec_{name} {value}"]
        lines += _metric("rounds_by_width_total", "counter", "Rounds by drafts verified.")
        lines += [
            f'localspec_rounds_by_width_total{{width="{width}"}} {count}'
            for width, count in sorted(self.widths.items())
        ]
        lines += _metric("rounds_by_arm_total", "counter", "Rounds by the drafter auto played.")
        lines += [
            f'localspec_rounds_by_arm_total{{drafter="{arm}"}} {count}'
            for arm, count in sorted(self.arms.items())
        ]
        return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, help_text: str) -> tuple[str, str]:
    return f"# HELP localspec_{name} {help_text}", f"# TYPE localspec_{name} {kind}"
