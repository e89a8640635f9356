"""An editing task: a listing of some 300 tokens is repeated with one name changed; n-gram against plain.

python benchmarks/editing.py [--model NAME] [--turns N] [--json]
"""

from __future__ import annotations

import argparse
import json
from statistics import median

import localspec

LISTING = """class Inventory:
    def __init__(self, name, capacity):
        self.name = name
        self.capacity = capacity
        self.items = {}

    def add_item(self, item, quantity):
        if quantity <= 0:
            raise ValueError("quantity must be positive")
        current = self.items.get(item, 0)
        if self.total_items() + quantity > self.capacity:
            raise OverflowError("the inventory is full")
        self.items[item] = current + quantity
        return self.items[item]

    def remove_item(self, item, quantity):
        current = self.items.get(item, 0)
        if quantity > current:
            raise KeyError("not enough of this item")
        self.items[item] = current - quantity
        if self.items[item] == 0:
            del self.items[item]
        return current - quantity

    def total_items(self):
        return sum(self.items.values())

    def report(self):
        lines = ["Inventory " + self.name]
        for item, quantity in sorted(self.items.items()):
            lines.append("  " + item + ": " + str(quantity))
        lines.append("total: " + str(self.total_items()))
        return "\\n".join(lines)
"""
PROMPT = (
    "# The old file:\n"
    + LISTING
    + "\n\n# The same file with the class Inventory renamed to Warehouse:\nclass Warehouse:\n"
)


def main() -> None:
    """Measure in turns and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    models = {way: localspec.load(options.model, drafter=way) for way in ("none", "ngram")}
    speeds: dict[str, list[float]] = {way: [] for way in models}
    results = {}
    for turn in range(options.turns + 1):
        for way, model in models.items():
            results[way] = model.generate(PROMPT, raw=True, max_tokens=options.tokens)
            if turn:
                speeds[way].append(results[way].stats.tokens_per_second)
    ratios = [fast / base for base, fast in zip(speeds["none"], speeds["ngram"], strict=True)]
    report = {
        "prompt_tokens": results["none"].stats.prompt_tokens,
        "generated_tokens": results["none"].stats.generated_tokens,
        "same_ids": results["none"].token_ids == results["ngram"].token_ids,
        "accepted_length": round(results["ngram"].stats.accepted_length, 2),
        "ratio_median": round(median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
    }
    print(json.dumps(report) if options.json else "\n".join(f"{k}: {v}" for k, v in report.items()))


if __name__ == "__main__":
    main()
