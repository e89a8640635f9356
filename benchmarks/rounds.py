"""Where a round's time goes, for each architecture with random weights on the default model.

A lazy graph has no phases. So rounds are measured twice, in turns: as they are, and with each phase
evaluated where it ends. The device's time is that of the evaluations, the host's all the rest. The
verification is also measured against a bare forward pass over as many tokens.

python benchmarks/rounds.py [--model NAME] [--width N] [--rounds N] [--turns N] [--temperature T]
    [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from localspec import catalog  # first: it loads a fast BLAS for MLX
from localspec.engine.acceptance import Verdict
from localspec.engine.drafting import Drafted
from localspec.engine.generation import Generation
from localspec.engine.loading import load_target
from localspec.engine.request import Request
from localspec.engine.sampling import SamplingParams
from localspec.engine.target import Output, Target
from localspec.models.config import (
    BlockConfig,
    ChainConfig,
    ConfidenceConfig,
    DrafterConfig,
    LayerConfig,
    MarkovConfig,
    RopeConfig,
)
from localspec.models.drafter import Drafter, Proposal
from localspec.models.load import build
from localspec.text.tokenizer import load_tokenizer

import mlx.core as mx  # isort: skip

PROMPT = "Explain how a bicycle stays upright while it is moving, step by step."
ARCHITECTURES = ("dflash", "dflare", "dspark", "dfly", "eagle3", "mtp")
PHASES = ("draft", "verify", "accept")
DRAFT_LAYERS = 2


class PhasedGeneration(Generation):
    """Evaluates each phase where it ends and adds up the time of that, in seconds by phase."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.device = dict.fromkeys(PHASES, 0.0)
        self._target = _Phased(self._target, self._evaluate)  # type: ignore[assignment]

    def _evaluate(self, phase: str, *arrays: Any) -> None:
        begun = time.perf_counter()
        mx.eval(*arrays)
        self.device[phase] += time.perf_counter() - begun

    def _draft(self) -> Drafted:
        drafted = super()._draft()
        if drafted.proposal is not None:
            # At a fixed width the confidence is not read by the loop, so it is never computed.
            self._evaluate("draft", drafted.proposal.tokens, drafted.proposal.q)
        return drafted

    def _judge(self, proposal: Proposal, output: Output) -> tuple[Verdict, mx.array | None]:
        verdict, chances = super()._judge(proposal, output)
        self._evaluate("accept", verdict, chances)
        return verdict, chances

    def _observe(self, next_tokens: list[int], taps: mx.array | None) -> None:
        super()._observe(next_tokens, taps)
        self._evaluate("draft", self._state.arrays)


class _Phased:
    """A target whose verification is evaluated before it returns."""

    def __init__(self, target: Target, evaluate: Callable[..., None]) -> None:
        self._inner, self._evaluate = target, evaluate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def verify(self, tokens: mx.array, cache: Any, **options: Any) -> Output:
        output = self._inner.verify(tokens, cache, **options)
        self._evaluate("verify", output, cache.arrays)
        return output

    def rollback(self, cache: Any, *, to: int) -> None:
        self._inner.rollback(cache, to=to)
        self._evaluate("accept", cache.arrays)


def random_drafter(architecture: Any, target: Target) -> Drafter:
    """A drafter of the target's proportions, as one that was trained for it would have."""
    args: Any = target.model.args
    heads, layers = args.num_attention_heads, DRAFT_LAYERS
    head_dim = target.hidden_size // heads
    chained = architecture in ("eagle3", "mtp")
    block = BlockConfig(
        block_size=16,
        layout="anchor_slot_unused",
        mask_token_id=0,
        layers=(LayerConfig(),) * layers,
        markov=MarkovConfig("vanilla", 64) if architecture == "dspark" else None,
        confidence=ConfidenceConfig(True, True) if architecture == "dspark" else None,
        correction_size=args.intermediate_size if architecture == "dfly" else None,
    )
    last = target.num_layers - 2
    drafter = build(
        DrafterConfig(
            architecture=architecture,
            hidden_size=target.hidden_size,
            intermediate_size=args.intermediate_size,
            num_layers=1 if chained else layers,
            num_heads=heads,
            num_kv_heads=args.num_key_value_heads,
            head_dim=head_dim,
            rms_norm_eps=1e-5,
            rope=RopeConfig(10000.0, head_dim),
            vocab_size=target.vocab_size,
            draft_vocab_size=target.vocab_size,
            target_hidden_size=target.hidden_size,
            tap_layers=() if architecture == "mtp" else (1, last // 2, last),
            target_layers=target.num_layers,
            block=None if chained else block,
            chain=ChainConfig(feed_normed=architecture == "mtp") if chained else None,
        )
    )
    mx.eval(drafter.parameters())
    drafter.bind(target)
    return drafter


def timed_rounds(generation: Generation, num_rounds: int) -> float:
    """Seconds of the rounds after the first."""
    while generation.stats.rounds < 1:
        generation.step()
    if isinstance(generation, PhasedGeneration):
        generation.device = dict.fromkeys(PHASES, 0.0)
    mx.synchronize()
    begun = time.perf_counter()
    for _ in range(num_rounds):
        generation.step()
    mx.synchronize()
    return time.perf_counter() - begun


def verify_against_bare(
    target: Target, taps: tuple[int, ...], prompt: list[int], width: int, turns: int
) -> tuple[float, float]:
    """Median milliseconds of both, on caches of the same length."""
    ours, bare = target.new_cache(), target.new_cache()
    for cache in (ours, bare):
        target.forward(mx.array([prompt]), cache, rows=1)
        mx.eval(cache.arrays)
    fed = mx.array([prompt[: width + 1]])

    def verify() -> None:
        output = target.verify(fed, ours, taps=taps)
        mx.eval(output, ours.arrays)

    def forward() -> None:
        mx.eval(target.model(fed, cache=bare.entries), bare.arrays)

    seconds: dict[str, list[float]] = {"verify": [], "forward": []}
    for turn in range(turns + 2):
        for way in (verify, forward) if turn % 2 else (forward, verify):
            begun = time.perf_counter()
            way()
            if turn >= 2:
                seconds[way.__name__].append(time.perf_counter() - begun)
        target.rollback(ours, to=1)
        for entry in bare.entries:
            entry.trim(width)
    return 1e3 * median(seconds["verify"]), 1e3 * median(seconds["forward"])


def measure(
    architecture: str, target: Target, prompt: list[int], options: argparse.Namespace
) -> dict[str, Any]:
    """One row of the table; times in milliseconds, medians over the turns."""
    drafter = random_drafter(architecture, target)
    request = Request(
        prompt,
        # More than all rounds can commit, so that no round is cut short.
        (options.rounds + 2) * (options.width + 1),
        SamplingParams(temperature=options.temperature),
        width=options.width,
    )
    plain: list[float] = []
    phased: list[dict[str, float]] = []
    for turn in range(options.turns + 1):
        for kind in (Generation, PhasedGeneration) if turn % 2 else (PhasedGeneration, Generation):
            generation = kind(target, drafter, request)
            seconds = 1e3 * timed_rounds(generation, options.rounds) / options.rounds
            # The first turn warms up.
            if not turn:
                continue
            if isinstance(generation, PhasedGeneration):
                device = {k: 1e3 * v / options.rounds for k, v in generation.device.items()}
                host = seconds - sum(device.values())
                phased.append({**device, "host": host, "total": seconds})
            else:
                plain.append(seconds)
    verify, bare = verify_against_bare(
        target, drafter.tap_layers, prompt, options.width, options.turns * options.rounds
    )
    total = median(row["total"] for row in phased)
    return {
        "architecture": architecture,
        "round_ms": round(median(plain), 2),
        "phased_ms": round(total, 2),
        "phased_over_round": round(total / median(plain), 3),
        **{
            f"{phase}_share": round(median(row[phase] / row["total"] for row in phased), 4)
            for phase in (*PHASES, "host")
        },
        "verify_ms": round(verify, 2),
        "forward_ms": round(bare, 2),
        "verify_over_forward": round(verify / bare, 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=catalog.DEFAULT_MODEL)
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    folder = catalog.resolve_model(options.model)
    target, tokenizer = load_target(folder), load_tokenizer(folder)
    prompt = [int(token) for token in tokenizer.encode(PROMPT)]
    rows = [measure(name, target, prompt, options) for name in ARCHITECTURES]
    if options.json:
        print(json.dumps({"model": options.model, "width": options.width, "rows": rows}))
        return
    names = list(rows[0])
    print("  ".join(names))
    for row in rows:
        print("  ".join(str(row[name]).rjust(len(name)) for name in names))


if __name__ == "__main__":
    main()
