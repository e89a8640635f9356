"""What drawing costs: 150 tokens a second, and a reply of 10,000 tokens."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from chat_app import Chat, asynchronous, chat
from scripted_engine import Script, ScriptedEngine, words

from localspec.tui.widgets.part import Part

_SECTION = """## Section {n}

Some prose with **bold** and `code` that explains the matter in a few sentences. It goes on
for a while, because replies do, and it wraps over more than one line of the terminal.

- first point with a few words
- second point with *emphasis*

```python
def function_{n}(a, b):
    # a comment
    return a + b * {n}
```

"""
_TOKENS = 10_000
_PER_ROUND = 3
_ROUNDS_PER_S = 150 / _PER_ROUND
_SECONDS = 3.0
_TRIES = 3
_WHOLE_S = 60.0
"""CPU seconds for all 10,000 tokens, as fast as they come. It takes 10 to 20; drawn whole, minutes."""


def reply() -> tuple[str, ScriptedEngine]:
    text = "".join(_SECTION.format(n=n) for n in range(_TOKENS // 60 + 60))
    return text, ScriptedEngine([Script(text, pattern=(_PER_ROUND - 1,), gated=True)])


def first_part(c: Chat) -> Part:
    return next(iter(c.replies[0].query(Part)))


async def share_of_core(c: Chat) -> float:
    """What this thread, which draws, takes of a core while 150 tokens a second come.

    Of some tries the least: whoever else is busy on the machine can only add to it.
    """
    return min([await _share(c) for _ in range(_TRIES)])


async def idle() -> None:
    """Wait until what came has been drawn."""
    cpu = 0.0
    while time.thread_time() - cpu > 0.05:
        cpu = time.thread_time()
        await asyncio.sleep(0.5)


async def _share(c: Chat) -> float:
    begun, cpu, allowed = time.monotonic(), time.thread_time(), 0
    while (seconds := time.monotonic() - begun) < _SECONDS:
        if due := int(seconds * _ROUNDS_PER_S) - allowed:
            c.engine.allow(due)
            allowed += due
        # Without the pilot, whose waiting asks every widget.
        await asyncio.sleep(0.02)
    return (time.thread_time() - cpu) / seconds


@asynchronous
async def test_150_tokens_a_second_take_a_third_of_a_core(tmp_path: Path) -> None:
    _, engine = reply()
    async with chat(tmp_path, engine) as c:
        await c.send("Go on")
        assert await share_of_core(c) < 1 / 3
        # It was drawn, too.
        assert len(words(c.replies[0].source)) > 150 * _SECONDS * _TRIES / 2


@asynchronous
async def test_a_long_reply_stays_cheap_to_draw(tmp_path: Path) -> None:
    text, engine = reply()
    async with chat(tmp_path, engine) as c:
        await c.send("Go on")
        begun = time.thread_time()
        engine.allow(_TOKENS // _PER_ROUND + 1)
        reached = len("".join(words(text)[:_TOKENS]))
        while len(c.replies[0].source if c.replies else "") < reached:
            await asyncio.sleep(0.05)
        await idle()
        assert time.thread_time() - begun < _WHOLE_S
        # At its end it costs what it did at its beginning.
        assert await share_of_core(c) < 1 / 3
        transcript = c.screen.transcript
        await c.until(lambda: transcript.scroll_y == transcript.max_scroll_y)
        await c.pilot.press("escape")
        await c.until(lambda: not c.screen.streaming.replying)
        assert c.replies[0].source == c.branch[-1][1]
        assert text.startswith(c.replies[0].source)
        # What is far out of sight is not there, but has its place.
        await c.until(lambda: not first_part(c).display)
        height = transcript.max_scroll_y
        transcript.scroll_home(animate=False)
        await c.until(lambda: first_part(c).display)
        assert first_part(c).region.y >= transcript.region.y
        assert transcript.max_scroll_y == height
