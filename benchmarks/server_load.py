"""Concurrent clients with mixed lengths: `localspec serve` against `mlx_lm.server` on the same weights.

python benchmarks/server_load.py [--model NAME] [-d DRAFTER] [--clients 1,4,16] [--requests N] [--json]

Both servers run as programs of their own, one at a time, since two at once would share the processor,
and in turns, so that a slow minute of the machine hits both. Each client sends one request after the
other over its own connection, streamed, at temperature 0. Reported for each server and number of
clients: tokens a second of all clients together, the median and the worst time to the first token,
and fairness (Jain's index of the clients' speeds: 1.0 is the same for all). At the end: the speed of a
single stream through the endpoint against `localspec generate`, and the time to the first token of a
second turn against the first's.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from localspec import catalog

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
START_S = 600


@dataclass(slots=True)
class Client:
    """What one client measured: seconds to first tokens, tokens, seconds in all."""

    first: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


def main() -> None:
    """Run everything, print a table or JSON."""
    options = _options()
    folder = str(catalog.resolve_model(options.model))
    rows = []
    for clients in options.clients:
        for name in ("localspec", "mlx_lm"):
            with _server(name, folder, options) as port:
                chat(port, SHORT, 4)
                rows.append({"server": name, "clients": clients, **load(port, clients, options)})
                print(_line(rows[-1]), file=sys.stderr)
    report: dict[str, Any] = {"model": options.model, "drafter": options.drafter, "load": rows}
    report["single_stream"] = single_stream(folder, options)
    report["second_turn"] = second_turn(folder, options)
    print(json.dumps(report, indent=2) if options.json else _text(report))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default=catalog.DEFAULT_MODEL)
    parser.add_argument("-d", "--drafter", default="auto")
    parser.add_argument("--clients", default="1,2,4,8,16")
    parser.add_argument("--requests", type=int, default=4, help="of each client")
    parser.add_argument("--turns", type=int, default=3, help="of single-stream measurements")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.clients = [int(number) for number in options.clients.split(",")]
    return options


@contextlib.contextmanager
def _server(name: str, folder: str, options: argparse.Namespace) -> Iterator[int]:
    """A server that runs while the context lasts; its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if name == "localspec":
        command = ["-m", "localspec", "serve", "-m", folder, "-d", options.drafter]
    else:
        command = ["-m", "mlx_lm", "server", "--model", folder]
    process = subprocess.Popen(
        [sys.executable, *command, "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    try:
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{name} did not start")
            time.sleep(0.2)
        yield port
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def load(port: int, num_clients: int, options: argparse.Namespace) -> dict[str, float]:
    """Clients that start together, each with the mix from another place on."""
    clients = [Client() for _ in range(num_clients)]

    def work(index: int) -> None:
        for number in range(options.requests):
            prompt, limit = MIX[(index + number) % len(MIX)]
            # Every client has its own beginning, as users have; else one prompt serves all.
            first, tokens, seconds = chat(port, f"Client {index}. {prompt}", limit)
            clients[index].first.append(first)
            clients[index].tokens += tokens
            clients[index].seconds += seconds

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


def chat(port: int, prompt: str | list[dict[str, str]], limit: int) -> tuple[float, int, float]:
    """Seconds to the first text, tokens, and seconds in all, of one streamed answer."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    body = {
        "messages": messages,
        "max_tokens": limit,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_S)
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"status {response.status}: {response.read()!r}")
    first, tokens = 0.0, 0
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
        said = chunk["choices"] and chunk["choices"][0]["delta"].get("content")
        first = first or (time.perf_counter() - started if said else 0.0)
    connection.close()
    seconds = time.perf_counter() - started
    return first or seconds, tokens, seconds


def single_stream(folder: str, options: argparse.Namespace) -> dict[str, float]:
    """Decoding speed of one stream: the endpoint and mlx_lm.server against the Python API."""
    import localspec

    model = localspec.load(folder, drafter=options.drafter)
    speeds: dict[str, list[float]] = {"generate": [], "endpoint": [], "mlx_lm": []}
    for _ in range(options.turns):
        result = model.generate(CODE, max_tokens=96)
        speeds["generate"].append(result.stats.tokens_per_second)
        for name, server in (("endpoint", "localspec"), ("mlx_lm", "mlx_lm")):
            with _server(server, folder, options) as port:
                chat(port, CODE, 4)
                first, tokens, seconds = chat(port, CODE, 96)
                speeds[name].append((tokens - 1) / (seconds - first))
    medians = {name: median(values) for name, values in speeds.items()}
    return {
        **{f"{name}_tokens_per_second": round(value, 2) for name, value in medians.items()},
        "endpoint_to_generate": round(medians["endpoint"] / medians["generate"], 3),
        "endpoint_to_mlx_lm": round(medians["endpoint"] / medians["mlx_lm"], 3),
    }


def second_turn(folder: str, options: argparse.Namespace) -> dict[str, float]:
    """Seconds to the first token of a turn on some 4,000 tokens, and of the turn after it."""
    turn = [{"role": "user", "content": LONG * 5}]
    with _server("localspec", folder, options) as port:
        chat(port, SHORT, 4)
        first, _, _ = chat(port, turn, 4)
        again = [
            *turn,
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": "So?"},
        ]
        second, _, _ = chat(port, again, 4)
    return {
        "first_s": round(first, 3),
        "second_s": round(second, 3),
        "ratio": round(second / first, 4),
    }


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
    lines += [f"{name}: {value}" for name, value in report["single_stream"].items()]
    lines += [f"second turn, {name}: {value}" for name, value in report["second_turn"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
