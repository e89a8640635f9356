"""The main screens as text, wide and narrow, against what they are known to look like.

LOCALSPEC_UPDATE_SCREENS=1 writes them anew; look at the difference before it is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest
from chat_app import Chat, asynchronous, chat
from scripted_engine import Script, ScriptedEngine
from textual._context import visible_screen_stack

_KNOWN = Path(__file__).parent / "screens"
_REPLY = """Take **two** variables:

```python
a, b = b, a + b
```

- one
- two 日本
"""


def screen_text(c: Chat) -> str:
    """What the terminal shows, a line a row."""
    # What lies behind a dialog is drawn from here; lines drawn without it would be kept.
    visible_screen_stack.set(c.app._background_screens)
    strips = c.app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips) + "\n"


async def compare(c: Chat, name: str, *, once: str) -> None:
    """Compare the screen with the known one, `once` a text is there and nothing moves any more."""
    path = _KNOWN / f"{name}.txt"
    if os.environ.get("LOCALSPEC_UPDATE_SCREENS"):
        before = ""
        while once not in before or before != screen_text(c):
            before = screen_text(c)
            await asyncio.sleep(1.0)
        path.parent.mkdir(exist_ok=True)
        path.write_text(before, encoding="utf-8")
    known = path.read_text(encoding="utf-8")
    assert once in known
    with contextlib.suppress(AssertionError):
        await c.until(lambda: screen_text(c) == known, seconds=20.0)
    assert screen_text(c) == known


@pytest.mark.parametrize(("name", "size"), [("wide", (104, 30)), ("narrow", (60, 20))])
def test_screens(tmp_path: Path, name: str, size: tuple[int, int]) -> None:
    @asynchronous
    async def scenario() -> None:
        engine = ScriptedEngine([Script(_REPLY, thinking="Hm.", pattern=(3, 1, 0, 2), width=3)])
        async with chat(tmp_path, engine, size=size) as c:
            await compare(c, f"{name}-welcome", once="A drafter guesses")
            await c.ask("How?")
            await compare(c, f"{name}-reply", once="two 日本")
            await c.pilot.press("f2")
            await compare(c, f"{name}-origins", once="bonus  ")
            await c.pilot.press("f2", "f4")
            await compare(c, f"{name}-race", once="as fast")
            await c.pilot.press("escape", *"/s")
            await compare(c, f"{name}-commands", once="/sessions")

    scenario()
