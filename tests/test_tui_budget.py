"""What drawing costs: a reply of 10,000 tokens, and 150 tokens a second at its end."""

from __future__ import annotations

import asyncio
import cProfile
import time
from pathlib import Path

from chat_app import asynchronous, chat
from scripted_engine import Script, ScriptedEngine, words

from localspec.tui.streaming import FRAME_S

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
_FRAMES = 10
_CALLS = 200_000
"""Python calls of a frame: a third of a core makes twice as many in its time on a machine of 2020.

Calls are counted because they are the same on a machine that is busy with other things.
"""
_WHOLE_S = 60.0
"""CPU seconds for all 10,000 tokens. It takes 10 to 15; drawn whole each time, it took minutes."""


@asynchronous
async def test_a_long_reply_stays_cheap_to_draw(tmp_path: Path) -> None:
    text = "".join(_SECTION.format(n=n) for n in range(_TOKENS // 60 + 60))
    engine = ScriptedEngine([Script(text, pattern=(2,), gated=True)])
    async with chat(tmp_path, engine) as c:
        await c.send("Go on")
        begun = time.process_time()
        engine.allow(_TOKENS // _PER_ROUND + 1)
        reached = len("".join(words(text)[:_TOKENS]))
        while len(c.replies[0].source if c.replies else "") < reached:
            await asyncio.sleep(0.05)
        assert time.process_time() - begun < _WHOLE_S
        reply = c.replies[0]
        await c.pilot.pause()
        # Then in frames of as many rounds as come at 150 tokens a second.
        rounds = round(150 * FRAME_S / _PER_ROUND)
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(_FRAMES):
            length = len(reply.source)
            engine.allow(rounds)
            # Without the pilot, whose waiting asks every widget.
            while len(reply.source) == length:
                await asyncio.sleep(FRAME_S / 4)
        profile.disable()
        assert sum(entry.callcount for entry in profile.getstats()) < _FRAMES * _CALLS
        transcript = c.screen.transcript
        assert transcript.scroll_y == transcript.max_scroll_y
        await c.pilot.press("escape")
        await c.until(lambda: not c.screen.streaming.replying)
        assert reply.source == c.branch[-1][1]
        assert text.startswith(reply.source)
