"""Concurrent clients with mixed lengths: `localspec serve` against `mlx_lm.server` on the same weights.

python benchmarks/server_load.py [-m NAME] [-d DRAFTER ...] [--clients 1,4,16] [--requests N]
    [--prompts N] [--tokens N] [--turns N] [--json]

First the load, with the first drafter. One server runs at a time, since two would share the processor,
and in turns, so that a slow minute of the machine hits both. Each client sends one request after the
other over its own connection, streamed, at temperature 0. Reported for each server and number of
clients: tokens a second of all clients together, the median and the worst time to the first token,
and fairness (Jain's index of the clients' speeds: 1.0 is the same for all).

Then a single stream, on code prompts of the eval set, prompt by prompt in turns: for each drafter the
endpoint and `localspec.load(...).stream`, which is what `localspec generate` prints, and mlx_lm.server.
Here both servers are up, one at a time at work. Speeds are tokens after the first ones, over the time
that they took, as the reader sees them.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from drafters import PROMPTS
from servers import as_run, chat, server

import localspec
from localspec import catalog
from localspec.lab.prompts import read
from localspec.model import Model

SHORT = "Name three primary colours."
CODE = """Complete this Python code. Repeat it and add the missing method `remove`.

class Inventory:
    def __init__(self, name):
        self.name = name
        self.items = {}

    def add(self, item, quantity):
        if quantity <= 0:
            raise ValueError("quantity must be positive")
        self.items[item] = self.items.get(item, 0) + quantity
        return self.items[item]
"""
LONG = (
    "Here are the notes.\n" + "The module owns its data and talks to one other. " * 60 + "Sum up."
)
MIX = ((SHORT, 24), (CODE, 64), (LONG, 32), (CODE, 96))
LEAST_TO_GENERATE = 0.95
LEAST_TO_MLX_LM = 1.4


@dataclass(slots=True)
class Client:
    """What one client measured: seconds to first tokens, tokens, seconds in all."""

    first: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Speed:
    """Tokens and seconds of several answers."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self.tokens += tokens
        self.seconds += seconds

    @property
    def value(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


def main() -> None:
    """Run everything, print a table or JSON."""
    options = _options()
    folder = str(catalog.resolve_model(options.model))
    rows = []
    with as_run(folder) as plain:
        folders = {"localspec": folder, "mlx_lm": plain}
        for clients in options.clients:
            for name, its in folders.items():
                with server(name, its, options.drafters) as port:
                    figures = load(port, clients, options)
                rows.append({"server": name, "clients": clients, **figures})
                print(_line(rows[-1]), file=sys.stderr)
        report = {
            "model": options.model,
            "drafters": options.drafters,
            "load": rows,
            "single_stream": single_stream(folder, plain, options),
        }
    print(json.dumps(report, indent=2) if options.json else _text(report))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-m", "--model", default=catalog.DEFAULT_MODEL)
    parser.add_argument(
        "-d", "--drafter", dest="drafters", action="append", help="may be repeated; default auto"
    )
    parser.add_argument("--clients", default="1,2,4,8,16")
    parser.add_argument("--requests", type=int, default=4, help="of each client")
    parser.add_argument("--prompts", type=int, default=8, help="of the single stream")
    parser.add_argument("--tokens", type=int, default=96, help="of its answers, at most")
    parser.add_argument("--turns", type=int, default=2, help="through its prompts")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.clients = [int(number) for number in options.clients.split(",")]
    options.drafters = options.drafters or ["auto"]
    return options


def load(port: int, num_clients: int, options: argparse.Namespace) -> dict[str, float]:
    """Clients that start together, each with the mix from another place on."""
    clients = [Client() for _ in range(num_clients)]

    def work(index: int) -> None:
        for number in range(options.requests):
            prompt, limit = MIX[(index + number) % len(MIX)]
            # Every client has its own beginning, as users have; else one prompt serves all.
            answer = chat(port, f"Client {index}. {prompt}", limit)
            clients[index].first.append(answer.first_s)
            clients[index].tokens += answer.tokens
            clients[index].seconds += answer.seconds

    started = time.perf_counter()
    threads = [threading.Thread(target=work, args=(index,)) for index in range(num_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    firsts = [first for client in clients for first in client.first]
    speeds = [client.speed for client in clients]
    return {
        "tokens_per_second": round(sum(client.tokens for client in clients) / seconds, 2),
        "first_token_median_s": round(median(firsts), 3),
        "first_token_worst_s": round(max(firsts), 3),
        "fairness": round(sum(speeds) ** 2 / (len(speeds) * sum(s * s for s in speeds)), 3),
    }


def single_stream(folder: str, plain: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Speeds of one stream and their ratios, for each drafter."""
    models = {name: localspec.load(folder, drafter=name) for name in options.drafters}
    generate = {name: Speed() for name in models}
    endpoint = {name: Speed() for name in models}
    mlx_lm = Speed()
    code = [prompt.text for prompt in read(PROMPTS) if prompt.kind == "code"]
    prompts = code[: options.prompts]
    for model in models.values():
        _stream("Hello.", model, 16)
    with server("localspec", folder, options.drafters) as ours, server("mlx_lm", plain) as theirs:
        for _ in range(options.turns):
            for prompt in prompts:
                mlx_lm.add(*chat(theirs, prompt, options.tokens).decoding)
                for name, model in models.items():
                    generate[name].add(*_stream(prompt, model, options.tokens))
                    endpoint[name].add(*chat(ours, prompt, options.tokens, name).decoding)
    return [
        {
            "drafter": name,
            "generate_tokens_per_second": round(generate[name].value, 2),
            "endpoint_tokens_per_second": round(endpoint[name].value, 2),
            "mlx_lm_tokens_per_second": round(mlx_lm.value, 2),
            "endpoint_to_generate": round(endpoint[name].value / generate[name].value, 3),
            "endpoint_to_mlx_lm": round(endpoint[name].value / mlx_lm.value, 3),
        }
        for name in models
    ]


def _stream(prompt: str, model: Model, limit: int) -> tuple[float, float]:
    """As `Answer.decoding`, through the Python API."""
    first, tokens = None, 0
    for piece in model.stream(prompt, max_tokens=limit):
        if first is None:
            first = time.perf_counter() if piece.text else None
        else:
            tokens += len(piece.token_ids)
    return tokens, time.perf_counter() - first if first is not None else 0.0


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['server']:<10} {row['clients']:>7} {row['tokens_per_second']:>9.1f} "
        f"{row['first_token_median_s']:>9.2f} {row['first_token_worst_s']:>9.2f} "
        f"{row['fairness']:>8.2f}"
    )


def _text(report: dict[str, Any]) -> str:
    heads = ("server", "clients", "tokens/s", "first s", "worst s", "fairness")
    widths = (10, 7, 9, 9, 9, 8)
    head = " ".join(
        f"{name:<{width}}" if index == 0 else f"{name:>{width}}"
        for index, (name, width) in enumerate(zip(heads, widths, strict=True))
    )
    lines = [head, *(_line(row) for row in report["load"])]
    rows = report["single_stream"]
    for row in rows:
        lines.append("")
        lines += [f"{name.replace('_', ' ')}: {value}" for name, value in row.items()]
    to_generate = min(row["endpoint_to_generate"] for row in rows)
    to_mlx_lm = max(row["endpoint_to_mlx_lm"] for row in rows)
    lines += [
        "",
        f"endpoint to generate, the lowest: {to_generate} (wanted: at least {LEAST_TO_GENERATE})",
        f"endpoint to mlx_lm.server, the best: {to_mlx_lm} (wanted: at least {LEAST_TO_MLX_LM})",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
