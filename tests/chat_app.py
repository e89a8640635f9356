"""What tests of the chat's screens share: an app on a scripted engine, and waiting for conditions."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripted_engine import ScriptedEngine
from textual.pilot import Pilot

from localspec.sessions import Sessions
from localspec.tui.app import ChatApp
from localspec.tui.config import Config
from localspec.tui.screens.chat import ChatScreen, Start
from localspec.tui.widgets.assistant_message import AssistantMessage
from localspec.tui.widgets.prompt import Prompt


@dataclass
class Chat:
    """A running chat."""

    app: ChatApp
    pilot: Pilot[None]
    engine: ScriptedEngine
    sessions: Sessions

    @property
    def screen(self) -> ChatScreen:
        screen = self.app.screen_stack[-1] if len(self.app.screen_stack) == 1 else None
        screen = screen or next(s for s in self.app.screen_stack if isinstance(s, ChatScreen))
        assert isinstance(screen, ChatScreen)
        return screen

    @property
    def prompt(self) -> Prompt:
        return self.screen.composer.prompt

    @property
    def replies(self) -> list[AssistantMessage]:
        return list(self.screen.query(AssistantMessage))

    @property
    def branch(self) -> list[tuple[str, str]]:
        return [(message.role, message.text) for message in self.screen.conversation.branch]

    async def until(self, holds: Callable[[], object], seconds: float = 240.0) -> None:
        """Wait until a condition holds."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, "waited in vain"
            await self.pilot.pause(0.01)
        await self.pilot.pause()

    async def send(self, text: str) -> None:
        """Write and press enter, all at once."""
        self.prompt.put(text)
        await self.pilot.press("enter")

    async def ask(self, text: str) -> None:
        """Send, and wait for the whole reply."""
        before = len(self.engine.requests)
        await self.send(text)
        await self.until(
            lambda: len(self.engine.requests) > before and not self.screen.streaming.replying
        )


@asynccontextmanager
async def chat(
    folder: Path,
    engine: ScriptedEngine | None = None,
    *,
    size: tuple[int, int] = (110, 34),
    config: Config | None = None,
    start: Start | None = None,
    ready: bool = True,
) -> AsyncIterator[Chat]:
    """A chat on a scripted engine, its sessions in `folder`; loaded and measured unless not `ready`."""
    engine = engine or ScriptedEngine()
    sessions = Sessions(folder / "sessions.db")
    config = config or Config(path=folder / "chat.toml")
    start = start or Start("smollm2-135m", "dfly")
    app = ChatApp(engine, sessions, config, start)
    # Tests are not to be slowed down by, nor to depend on, animations.
    app.animation_level = "none"
    async with app.run_test(size=size) as pilot:
        running = Chat(app, pilot, engine, sessions)
        if ready:
            await running.until(lambda: running.screen.streaming.view.figures.plain_speed)
        yield running
    sessions.close()


def asynchronous(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Let pytest run an async test."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run
