"""The conversation on screen. It follows the reply unless the user has scrolled up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.reactive import var
from textual.widget import Widget

from localspec.sessions import Message
from localspec.tui.widgets.assistant_message import AssistantMessage
from localspec.tui.widgets.message_view import MessageView
from localspec.tui.widgets.part import Part
from localspec.tui.widgets.user_message import UserMessage
from localspec.tui.widgets.welcome import Welcome

_REACH = 2
"""Screens above and below the one in sight that are kept ready."""

_MARGIN = 1
"""Rows between messages, as in the stylesheet."""

VersionOf = Callable[[Message], tuple[int, int]]


class Transcript(VerticalScroll, can_focus=False):
    """Messages, the oldest first."""

    origins = var(False)
    """Whether replies show their tokens coloured by origin."""

    def __init__(self) -> None:
        super().__init__(id="transcript")
        # An anchor pushes what does not fill its container down, so this is at least as high.
        self._messages = Vertical(id="messages")
        self._width = 0
        self._drawing = False

    def compose(self) -> ComposeResult:
        yield self._messages

    def on_mount(self) -> None:
        self.anchor()

    @property
    def views(self) -> list[MessageView]:
        return list(self.query(MessageView))

    async def show(self, branch: Sequence[Message], *, speaker: str, version: VersionOf) -> None:
        """Show a branch alone, from its end; an empty one welcomes."""
        with self.app.batch_update():
            await self._messages.remove_children()
            self.set_class(not branch, "-empty")
            if not branch:
                await self._messages.mount(Welcome())
            else:
                await self._messages.mount_all(
                    self._view(message, speaker, version(message)) for message in branch
                )
        self.follow()

    async def add(
        self, message: Message, *, speaker: str, version: tuple[int, int] = (1, 1)
    ) -> MessageView:
        """Add a message at the end, in sight."""
        view = self._view(message, speaker, version)
        await self.put(view)
        return view

    async def put(self, widget: Widget) -> None:
        """Put a widget at the end, in sight."""
        await self.query(Welcome).remove()
        self.remove_class("-empty")
        await self._messages.mount(widget)
        self.follow()

    def follow(self) -> None:
        """Go to the end, and stay there while text comes."""
        self.anchor()
        self.call_after_refresh(self.scroll_end, animate=False)
        self.call_after_refresh(self.rest)

    def read_on(self) -> None:
        """A page down; from the last page to the end, to follow again."""
        if self.max_scroll_y - self.scroll_y <= self.size.height:
            self.follow()
        else:
            self.scroll_page_down(animate=False)

    def rest(self) -> None:
        """Let what is complete cost little, and nothing far out of sight."""
        if self.origins:
            return
        # Rows from the end up: where a widget is on the screen costs a look through all of them.
        height = self.size.height
        nearest = self.max_scroll_y - self.scroll_y - _REACH * height
        farthest = nearest + (2 * _REACH + 1) * height
        undrawn = None
        for view in reversed(self._messages.children):
            if isinstance(view, AssistantMessage):
                found = view.said.rest(nearest, farthest)
                if found and not undrawn:
                    part, row = found
                    undrawn = part, row > farthest - _REACH * height
            nearest -= view.outer_size.height + _MARGIN
            farthest -= view.outer_size.height + _MARGIN
        if undrawn and not self._drawing:
            self._drawing = True
            # After the layout that gives it a width, if it was not displayed.
            self.call_after_refresh(self._draw, *undrawn)

    async def _draw(self, part: Part, above: bool) -> None:
        """Draw a part that has come into sight or near it.

        Args:
            part: not drawn yet, of a height that was guessed.
            above: whether it begins above what is in sight, which then must not move.
        """
        try:
            if not part.is_attached:
                return
            guessed = part.rows
            with self.app.batch_update():
                await part.draw()
                part.rest()
                if above and part.rows:
                    # No watcher: the layout that this height needs is what makes room for it.
                    y = self.scroll_y + part.rows - guessed
                    self.set_reactive(Widget.scroll_y, y)
                    self.set_reactive(Widget.scroll_target_y, y)
        finally:
            self._drawing = False
        # One at a time, so that keys are heard between them.
        self.call_after_refresh(self.rest)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self.call_after_refresh(self.rest)

    def on_resize(self, event: events.Resize) -> None:
        if event.size.width != self._width:
            self._width = event.size.width
            for view in self.query(AssistantMessage):
                view.said.free()
            self.call_after_refresh(self.rest)

    def watch_origins(self, origins: bool) -> None:
        for view in self.query(AssistantMessage):
            view.origins = origins
        self.call_after_refresh(self.rest)

    def _view(self, message: Message, speaker: str, version: tuple[int, int]) -> MessageView:
        if message.role == "user":
            return UserMessage(message, version)
        return AssistantMessage(message, version, speaker=speaker, origins=self.origins)
