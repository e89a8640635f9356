"""Makes the README's pictures of the chat: the real screens on the tests' scripted engine.

python docs/screenshots.py
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from chat_app import Chat, chat  # noqa: E402
from scripted_engine import Script, ScriptedEngine, words  # noqa: E402

_QUESTION = "Write a function for the n-th Fibonacci number."
_ANSWER = """An iterative version takes **O(n)** steps and two variables:

```python
def fibonacci(n: int) -> int:
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a
```

- `a` holds the number that comes next in turn, `b` the one after it.
- Each step moves both on, so nothing is computed twice.

For very large `n`, doubling the index takes only *O(log n)* steps.
"""
_EARLIER = (
    "Explain how a bicycle stays upright",
    "Rename total to sum_prices in this file",
    "A haiku about the sea, please",
)
_PATTERN = (3, 4, 1, 4, 2, 0, 4, 3, 4, 1)
_SIZE = (104, 30)


async def main() -> None:
    """Write the pictures beside this file."""
    reply = Script(_ANSWER, pattern=_PATTERN, width=4, gated=True)
    engine = ScriptedEngine([*(Script("Gladly.") for _ in _EARLIER), reply])
    with tempfile.TemporaryDirectory() as folder:
        async with chat(Path(folder), engine, size=_SIZE) as c:
            for question in _EARLIER:
                await c.ask(question)
                await c.pilot.press("ctrl+n")
            await _streaming(c)
            await _origins(c)
            await _race(c)
            await c.pilot.press("escape", "ctrl+s")
            await c.pilot.pause(0.5)
            _save(c, "sessions")


async def _streaming(c: Chat) -> None:
    await c.send(_QUESTION)
    c.engine.allow(15)
    await c.until(lambda: len(c.screen.streaming.view.figures.rounds) == 15)
    _save(c, "streaming")


async def _origins(c: Chat) -> None:
    c.engine.allow(len(words(_ANSWER)))
    await c.until(lambda: not c.screen.streaming.replying)
    await c.pilot.press("f2")
    await c.pilot.pause(0.3)
    _save(c, "origins")
    await c.pilot.press("f2")


async def _race(c: Chat) -> None:
    # Enough for the drafter's lap, then for part of the plain one.
    while c.engine._gate.acquire(blocking=False):
        pass
    c.engine.allow(1000)
    await c.pilot.press("f4")
    await c.pilot.pause(2.2)
    _save(c, "race")
    await c.pilot.pause(4.0)


def _save(c: Chat, name: str) -> None:
    """The screen without what would be fetched from elsewhere."""
    picture = c.app.export_screenshot(title="localspec chat")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    picture = picture.replace("Fira Code", "ui-monospace, Menlo, DejaVu Sans Mono")
    (HERE / f"chat-{name}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
