"""A server with the fake engine, as a program: it prints its URL, then at every line its size."""

from __future__ import annotations

import gc
import json
import resource
import sys
import threading

from fake_engine import FakeEngine
from serving import serving


def main() -> None:
    engine = FakeEngine(pause=0.002)
    with serving(engine, max_waiting=4) as url:
        print(url, flush=True)
        for _ in sys.stdin:
            engine.jobs.clear()
            engine.kept.clear()
            gc.collect()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            figures = {
                "blocks": sys.getallocatedblocks(),
                "peak": peak * (1 if sys.platform == "darwin" else 1024),
                # The event loop's pool keeps its idle threads for a while.
                "threads": sum("AnyIO" not in each.name for each in threading.enumerate()),
            }
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
