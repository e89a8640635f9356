"""A hundred aborts, a thousand malformed bodies, a full queue, a killed client: all as it was before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
from ordeals import abort, answers, fetch, kill_a_client, leave, overfill, send_malformed, user
from serving import serving, wait_until

from localspec.backend import ModelEngine
from localspec.model import Model
from localspec.targets import worker

PROGRAM = Path(__file__).parent / "fake_server.py"


def ordeal(url: str, aborts: int, bodies: int) -> None:
    abort(url, aborts)
    assert answers(url)
    send_malformed(url, bodies)
    assert answers(url)
    statuses = overfill(url, 24)
    assert set(statuses) == {200, 503}
    assert statuses.count(200) >= 8
    assert answers(url)
    kill_a_client(url)
    assert answers(url)


def test_a_server_is_after_an_ordeal_what_it_was_before() -> None:
    with subprocess.Popen(
        [sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def figures() -> dict[str, int]:
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write("\n")
            server.stdin.flush()
            return dict(json.loads(server.stdout.readline()))

        url = server.stdout.readline().strip()
        # What is made once (modules, threads of pools, caches) is made by a first, short one.
        ordeal(url, 30, 100)
        before = figures()
        ordeal(url, 100, 1000)
        after = figures()
        server.stdin.close()
        assert server.wait(30) == 0
    # A request that left its task and its connection behind would leave some hundred blocks each.
    assert after["blocks"] - before["blocks"] < 4000
    assert after["peak"] - before["peak"] < 16 * 2**20
    assert after["threads"] == before["threads"]


def test_clients_that_leave_the_real_model_leave_no_arrays(smollm2: Model) -> None:
    engine = ModelEngine({"none": smollm2})

    def in_use() -> int:
        smollm2.shrink_prefixes(0)
        return int(worker.call(mx.get_active_memory))

    with serving(engine) as url:
        asked = {**user("Count to a thousand."), "stream": True}
        leave(url, asked, after_bytes=400)
        wait_until(lambda: b"localspec_running 0" in fetch(url, "/metrics")[2])
        before = in_use()
        for number in range(12):
            leave(url, asked, after_bytes=0 if number % 2 else 400)
        wait_until(lambda: b"localspec_running 0" in fetch(url, "/metrics")[2])
        assert in_use() - before < 2**20
