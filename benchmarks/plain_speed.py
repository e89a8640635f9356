"""Plain decoding against mlx-lm's own loop on the same weights, in turns; then memory over 50 runs.

python benchmarks/plain_speed.py [--model NAME] [--turns N] [--tokens N] [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import time
from statistics import median

from localspec import catalog  # first: it loads a fast BLAS for MLX
from localspec.engine.generation import Generation
from localspec.engine.loading import load_target
from localspec.engine.request import Request
from localspec.text.tokenizer import load_tokenizer

import mlx.core as mx  # isort: skip
from mlx_lm.generate import generate_step  # isort: skip

PROMPT = "Explain how a bicycle stays upright while it is moving, step by step."


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=catalog.DEFAULT_MODEL)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    folder = catalog.resolve_model(options.model)
    target, tokenizer = load_target(folder), load_tokenizer(folder)
    prompt = [int(token) for token in tokenizer.encode(PROMPT)]

    def ours() -> tuple[list[int], float]:
        generation = Generation(target, None, Request(prompt, options.tokens))
        for _ in generation.run():
            pass
        stats = generation.stats
        return generation.tokens[len(prompt) :], stats.generated_tokens / stats.decode_s

    def theirs() -> tuple[list[int], float]:
        tokens: list[int] = []
        started = 0.0
        for token, _ in generate_step(mx.array(prompt), target.model, max_tokens=options.tokens):
            # Their first token comes with the prompt; the clock starts there.
            started = started or time.perf_counter()
            tokens.append(int(token))
        return tokens, (len(tokens) - 1) / (time.perf_counter() - started)

    ours(), theirs()
    ratios, speeds = [], []
    for turn in range(options.turns):
        first, second = (ours, theirs) if turn % 2 else (theirs, ours)
        results = {way.__name__: way() for way in (first, second)}
        assert results["ours"][0] == results["theirs"][0], "the token ids differ"
        ratios.append(results["ours"][1] / results["theirs"][1])
        speeds.append((results["ours"][1], results["theirs"][1]))

    memory = []
    for _ in range(50):
        ours()
        gc.collect()
        mx.clear_cache()
        memory.append(mx.get_active_memory())
    report = {
        "model": options.model,
        "tokens": options.tokens,
        "ratio_median": round(median(ratios), 4),
        "ratio_min": round(min(ratios), 4),
        "ratio_max": round(max(ratios), 4),
        "localspec_tokens_per_second": round(median(s[0] for s in speeds), 2),
        "mlx_lm_tokens_per_second": round(median(s[1] for s in speeds), 2),
        "active_bytes_after_run_1": memory[0],
        "active_bytes_after_run_50": memory[-1],
        "peak_process_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(report) if options.json else "\n".join(f"{k}: {v}" for k, v in report.items()))


if __name__ == "__main__":
    main()
