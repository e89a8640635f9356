"""The engine thread: jobs, generations that take turns, cancellation, errors."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import pytest
from tables import TableDrafter, TableTarget

from localspec.engine.generation import PREFILL_CHUNK, SHARED_CHUNK, Generation
from localspec.engine.request import Committed, Finished, Prefilled, Request
from localspec.engine.worker import Worker
from localspec.errors import UsageError


@pytest.fixture(scope="module")
def worker() -> Worker:
    return Worker()


@pytest.fixture(scope="module")
def target(worker: Worker) -> Any:
    return worker.call(TableTarget, 12, 5)


def test_calls_run_on_one_thread_and_hand_back_values_and_errors(worker: Worker) -> None:
    threads = {worker.call(threading.get_ident) for _ in range(3)}
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda: 1 // 0)
    assert worker.call(lambda: 7) == 7


def test_a_stream_gives_what_the_generation_says(worker: Worker, target: Any) -> None:
    request = Request([1, 2, 3], 25)
    events = list(worker.generate(lambda: Generation(target, None, request)))
    whole = worker.call(lambda: list(Generation(target, None, request).run()))
    committed = [e.tokens for e in events if isinstance(e, Committed)]
    assert committed == [e.tokens for e in whole if isinstance(e, Committed)]
    assert isinstance(events[0], Prefilled)
    assert isinstance(events[-1], Finished)


def test_generations_take_turns(worker: Worker, target: Any) -> None:
    order: list[str] = []
    gate = threading.Event()

    class Noting(Generation):
        def __init__(self, name: str) -> None:
            super().__init__(target, None, Request([1], 5))
            self.name = name

        def step(self) -> Any:
            order.append(self.name)
            return super().step()

    worker.post(lambda: gate.wait())
    streams = [worker.generate(lambda name=name: Noting(name)) for name in "ab"]
    gate.set()
    for stream in streams:
        list(stream)
    assert order == ["a", "b"] * 5


def test_a_prompt_is_read_in_smaller_pieces_while_others_wait(worker: Worker, target: Any) -> None:
    def largest(streams: list[Any]) -> list[int]:
        sizes = []
        for stream in streams:
            done = [event.done for event in stream if isinstance(event, Prefilled)]
            sizes.append(max(after - before for before, after in itertools.pairwise(done)))
        return sizes

    def long_prompt() -> Generation:
        return Generation(target, None, Request([1] * 1500, 2))

    assert largest([worker.generate(long_prompt)]) == [PREFILL_CHUNK]
    gate = threading.Event()
    worker.post(lambda: gate.wait())
    streams = [worker.generate(long_prompt) for _ in range(2)]
    gate.set()
    assert largest(streams) == [SHARED_CHUNK] * 2


def test_cancelling_ends_within_a_step(worker: Worker, target: Any) -> None:
    stream = worker.generate(lambda: Generation(target, TableDrafter(12, 2), Request([1], 4000)))
    seen = 0
    for event in stream:
        if isinstance(event, Committed):
            seen += 1
            if seen == 3:
                stream.cancel()
        last = event
    assert isinstance(last, Finished)
    assert last.reason == "cancelled"
    assert last.stats.generated_tokens < 4000


def test_leaving_a_stream_frees_the_engine(worker: Worker, target: Any) -> None:
    for _ in range(100):
        for _event in worker.generate(lambda: Generation(target, None, Request([1], 4000))):
            break
    deadline = time.monotonic() + 10
    while worker._running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not worker._running


def test_an_error_reaches_the_reader_and_the_engine_goes_on(worker: Worker, target: Any) -> None:
    def bad() -> Generation:
        raise UsageError("no")

    with pytest.raises(UsageError, match="no"):
        list(worker.generate(bad))

    class Breaking(Generation):
        def step(self) -> Any:
            raise RuntimeError("broken step")

    with pytest.raises(RuntimeError, match="broken step"):
        list(worker.generate(lambda: Breaking(target, None, Request([1], 5))))
    assert list(worker.generate(lambda: Generation(target, None, Request([1], 5))))
