"""The one MLX thread: it loads, generates and frees; everybody else sees queues and plain values.

Generations under way take turns, one step each, so none waits for another to end.
"""

from __future__ import annotations

import atexit
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import mlx.core as mx

from localspec.engine.generation import PREFILL_CHUNK, SHARED_CHUNK, Generation
from localspec.engine.request import Event, Finished, FinishReason

T = TypeVar("T")


class Stream:
    """The events of one generation, for one reader on any thread."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event | BaseException] = queue.SimpleQueue()
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """End the generation within one step; its last event is `Finished("cancelled", …)`."""
        self._cancelled.set()

    def __iter__(self) -> Iterator[Event]:
        """Events as they come, up to `Finished`; leaving early cancels.

        Raises:
            Exception: what went wrong on the engine thread.
        """
        try:
            while True:
                event = self._events.get()
                if isinstance(event, BaseException):
                    raise event
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            self.cancel()


class Worker:
    """Runs jobs and generations on its own thread, started with the first of them."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._running: deque[tuple[Generation, Stream]] = deque()
        self._thread = threading.Thread(target=self._work, name="localspec-engine", daemon=True)
        self._starting = threading.Lock()
        self._stopping = False

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function on the engine thread and wait for what it returns or raises."""
        future: Future[T] = Future()

        def job() -> None:
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)

        self.post(job)
        return future.result()

    def post(self, job: Callable[[], None]) -> None:
        """Run a job on the engine thread some time; it must not raise."""
        with self._starting:
            if not self._thread.ident:
                self._thread.start()
                # The device must be idle before the interpreter takes its libraries apart.
                atexit.register(self._stop)
        self._jobs.put(job)

    def generate(self, make: Callable[[], Generation]) -> Stream:
        """Start a generation, made on the engine thread; its first event is a `Prefilled`."""
        stream = Stream()

        def job() -> None:
            try:
                generation = make()
                stream._events.put(generation.begun())
                self._running.append((generation, stream))
            except BaseException as error:
                stream._events.put(error)

        self.post(job)
        return stream

    def _work(self) -> None:
        while not self._stopping:
            try:
                # With work at hand, look for new jobs; without, wait for one.
                self._jobs.get(block=not self._running)()
            except queue.Empty:
                self._step()
        # Streams left to the end of the process, with a step still under way, would abort it.
        self._running.clear()
        mx.synchronize()
        mx.clear_streams()

    def _step(self) -> None:
        generation, stream = self._running.popleft()
        try:
            reason: FinishReason | None = "cancelled"
            if not stream._cancelled.is_set():
                generation.alone = not self._running
                generation.chunk = PREFILL_CHUNK if generation.alone else SHARED_CHUNK
                stream._events.put(generation.step())
                reason = generation.finish_reason()
            if reason is None:
                self._running.append((generation, stream))
            else:
                # Before the reader hears of the end: its next request may come at once.
                generation.keep()
                stream._events.put(Finished(reason, generation.stats))
        except BaseException as error:
            stream._events.put(error)

    def _stop(self) -> None:
        self._stopping = True
        self._jobs.put(lambda: None)
        self._thread.join()
