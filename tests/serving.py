"""A server on real loopback, in a thread, for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from localspec.server.app import create_app
from localspec.server.listen import bind, make_server, url_of
from localspec.server.security import Access


@contextmanager
def serving(engine: Any, access: Access | None = None, **options: Any) -> Iterator[str]:
    """The base URL of a server that runs while the context lasts."""
    app = create_app(engine, access, **options)
    listening = bind("127.0.0.1", 0)
    server = make_server(app)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.005)
        yield url_of(listening)
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
        assert not thread.is_alive()


def wait_until(condition: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
