"""`make demo`: the default model answers; then plain and speculative decoding side by side.

The answer is streamed with drafts, then both ways decode the same prompts in turns.
"""

from __future__ import annotations

import sys
from statistics import median

import localspec

QUESTION = "Why is the sky blue? Answer in two sentences."
EDIT = """Repeat this Python code exactly, but rename the function `total` to `sum_prices`:

```python
def total(items, tax_rate):
    subtotal = 0.0
    for item in items:
        subtotal += item["price"] * item["quantity"]
    discount = subtotal * 0.1 if subtotal > 100.0 else 0.0
    taxed = (subtotal - discount) * (1.0 + tax_rate)
    return round(taxed, 2)


def print_invoice(customer, items, tax_rate):
    print("Invoice for", customer["name"])
    for item in items:
        print(item["name"], item["quantity"], item["price"])
    print("Total:", total(items, tax_rate))
```"""
PROMPTS = {"question": QUESTION, "editing": EDIT}
ROUNDS = 3
MAX_TOKENS = 160


def main() -> None:
    """Stream an answer, then print the table."""
    plain = localspec.load(drafter="none", notify=lambda note: print(note, file=sys.stderr))
    drafted = localspec.load(drafter="auto")
    print(f"> {QUESTION}\n")
    for piece in drafted.stream(QUESTION, max_tokens=MAX_TOKENS):
        print(piece.text, end="", flush=True)
    print("\n")
    print(f"{'prompt':<10} {'decoding':<12} {'tokens/s':>8} {'accepted length':>16} {'speed':>7}")
    for name, prompt in PROMPTS.items():
        speeds: dict[str, list[float]] = {"plain": [], "speculative": []}
        accepted = 0.0
        for _ in range(ROUNDS):
            answers = {}
            for way, model in (("plain", plain), ("speculative", drafted)):
                answers[way] = model.generate(prompt, max_tokens=MAX_TOKENS)
                speeds[way].append(answers[way].stats.tokens_per_second)
            accepted = answers["speculative"].stats.accepted_length
            if answers["plain"].token_ids != answers["speculative"].token_ids:
                print("the two answers differ; near-ties of the best two tokens can do that")
        base, fast = median(speeds["plain"]), median(speeds["speculative"])
        print(f"{name:<10} {'plain':<12} {base:8.1f} {1.0:16.2f} {1.0:6.2f}x")
        print(f"{name:<10} {'speculative':<12} {fast:8.1f} {accepted:16.2f} {fast / base:6.2f}x")
    print("\nnext: .venv/bin/localspec chat")


if __name__ == "__main__":
    main()
