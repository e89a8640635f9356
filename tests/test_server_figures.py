"""What drafting did, as the endpoint tells it: in usage and in its metrics."""

from __future__ import annotations

from localspec.server.engine import Figures
from localspec.server.generations import speculation, total
from localspec.server.metrics import Metrics

ONE = Figures(
    prompt_tokens=9,
    cached_tokens=4,
    generated_tokens=12,
    rounds=8,
    proposed=6,
    accepted=4,
    prefill_s=0.5,
    decode_s=2.0,
    widths=(5, 0, 3),
    parked=4,
    arms={"eagle3": 6, "ngram": 2},
)
OTHER = Figures(
    prompt_tokens=9,
    cached_tokens=4,
    generated_tokens=4,
    rounds=4,
    proposed=0,
    accepted=0,
    prefill_s=0.0,
    decode_s=2.0,
    widths=(4,),
    parked=0,
    arms={"none": 4},
)


def test_usage_tells_widths_parking_and_arms() -> None:
    told = speculation(total([ONE, OTHER]), "auto")
    assert told["widths"] == [9, 0, 3]
    assert told["parked_share"] == round(4 / 12, 4)
    assert told["arms"] == {"eagle3": 6, "ngram": 2, "none": 4}
    assert told["accepted_length"] == round(16 / 12, 4)
    assert told["tokens_per_second"] == 4.0
    assert (told["rounds"], told["proposed"], told["accepted"]) == (12, 6, 4)


def test_metrics_add_up_widths_parking_and_arms() -> None:
    metrics = Metrics()
    for figures in (ONE, OTHER):
        metrics.add(figures)
    lines = metrics.text(running=1, waiting=0).splitlines()
    for line in (
        "localspec_rounds_total 12",
        "localspec_parked_rounds_total 4",
        'localspec_rounds_by_width_total{width="0"} 9',
        'localspec_rounds_by_width_total{width="2"} 3',
        'localspec_rounds_by_arm_total{drafter="eagle3"} 6',
        'localspec_rounds_by_arm_total{drafter="none"} 4',
    ):
        assert line in lines
