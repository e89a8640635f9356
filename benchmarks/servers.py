"""What the endpoint's benchmarks share: a server that runs meanwhile, and answers that are streamed."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from localspec.engine.loading import load_target

_WAIT_S = 1800


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client saw of one streamed answer.

    Attributes:
        first_s: seconds to the first text.
        seconds: to the end.
        tokens: of the answer, as the server says.
        first_tokens: about how many of them came first; a round of drafting gives several.
        text: of the answer.
    """

    first_s: float
    seconds: float
    tokens: int
    first_tokens: float
    text: str

    @property
    def decoding(self) -> tuple[float, float]:
        """Tokens after the first ones, and their seconds."""
        return max(0.0, self.tokens - self.first_tokens), self.seconds - self.first_s


@contextlib.contextmanager
def as_run(folder: str) -> Iterator[str]:
    """A model's folder with the weights as localspec runs them: on the CPU a copy in float32.

    There mlx-lm would run quantised weights with slow kernels, which is not what is to be compared.
    """
    if mx.default_device() != mx.Device(mx.cpu):
        yield folder
        return
    model = load_target(Path(folder)).model
    config = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    for key in ("quantization", "quantization_config"):
        config.pop(key, None)
    with tempfile.TemporaryDirectory() as copy:
        for file in Path(folder).iterdir():
            if file.suffix != ".safetensors":
                shutil.copy(file, copy)
        weights: Any = tree_flatten(model.parameters())
        mx.save_safetensors(f"{copy}/model.safetensors", dict(weights), {"format": "mlx"})
        Path(copy, "config.json").write_text(json.dumps(config), encoding="utf-8")
        del model, weights
        yield copy


@contextlib.contextmanager
def server(name: str, folder: str, drafters: Sequence[str] = ()) -> Iterator[int]:
    """A server, `localspec` or `mlx_lm`, that runs while the context lasts; its port.

    Args:
        drafters: that requests to localspec may choose; the first is what they get otherwise.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    if name == "localspec":
        command = ["-m", "localspec", "serve", "-m", folder]
        command += [word for name in drafters for word in ("-d", name)]
    else:
        command = ["-m", "mlx_lm", "server", "--model", folder]
        if sys.platform == "linux":
            # localspec loads it by itself.
            environment["LD_PRELOAD"] = "libopenblas.so.0"
    process = subprocess.Popen(
        [sys.executable, *command, "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        deadline = time.monotonic() + _WAIT_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server {command[1]} did not start")
            time.sleep(0.2)
        chat(port, "Hello.", 16)
        yield port
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def chat(
    port: int, prompt: str | list[dict[str, str]], limit: int, drafter: str | None = None
) -> Answer:
    """One answer at temperature 0, streamed, over a connection of its own."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    body: dict[str, Any] = {
        "messages": messages,
        "max_tokens": limit,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if drafter is not None:
        body["drafter"] = drafter
    started = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_WAIT_S)
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"status {response.status}: {response.read()!r}")
    first, said = None, []
    usage: dict[str, Any] = {}
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        usage = chunk.get("usage") or usage
        text = chunk["choices"][0]["delta"].get("content") if chunk["choices"] else None
        if text:
            first = first or time.perf_counter() - started
            said.append(text)
    connection.close()
    seconds = time.perf_counter() - started
    speculative = usage.get("speculative", {})
    return Answer(
        first_s=first or seconds,
        seconds=seconds,
        tokens=usage["completion_tokens"],
        first_tokens=speculative.get("accepted_length", 1.0),
        text="".join(said),
    )
