"""The chat: transcript, composer and figures, and what can be done with them.

Models are loaded by `loading.py`, replies streamed by `streaming.py`, messages edited and replaced by
`revising.py`, taken elsewhere by `taking.py`, typed commands read by `typed.py`, dialogs opened by
`dialogs.py`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message as Event
from textual.screen import Screen
from textual.widgets import Footer

from localspec.errors import LocalspecError
from localspec.sessions import Message, Sessions
from localspec.tui import dialogs, taking, typed
from localspec.tui.actions import CHAT, bindings
from localspec.tui.config import Config
from localspec.tui.contest import ALL
from localspec.tui.conversation import Conversation
from localspec.tui.engine import PLAIN, Choice, Engine, Loaded
from localspec.tui.loading import Loading
from localspec.tui.revising import Revising
from localspec.tui.screens.compare import CompareScreen
from localspec.tui.screens.contest import ContestScreen
from localspec.tui.settings import OPTIONS, Settings
from localspec.tui.streaming import Streaming
from localspec.tui.widgets.composer import Composer
from localspec.tui.widgets.message_view import MessageView
from localspec.tui.widgets.notice import Notice
from localspec.tui.widgets.panel import Panel
from localspec.tui.widgets.prompt import Prompt
from localspec.tui.widgets.status_line import StatusLine
from localspec.tui.widgets.title_bar import TitleBar
from localspec.tui.widgets.transcript import Transcript

_QUIT_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Start:
    """What a chat begins with.

    Attributes:
        session: the saved conversation to resume; None: a new one.
        prompt: sent at once; empty: nothing.
        notice: something the user must know, shown first; empty: nothing.
    """

    target: str
    drafter: str
    system: str = ""
    settings: Settings = field(default_factory=Settings)
    session: int | None = None
    prompt: str = ""
    notice: str = ""


class ChatScreen(Screen[None]):
    """The main screen.

    Args:
        engine: what replies.
        sessions: where conversations are kept.
        config: the user's.
        start: what to begin with.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(CHAT)]
    AUTO_FOCUS = "#prompt"

    class Unsaved(Event):
        """The conversation goes on, but can no longer be saved, and why."""

        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    def __init__(self, engine: Engine, sessions: Sessions, config: Config, start: Start) -> None:
        super().__init__()
        self._engine = engine
        self._sessions = sessions
        self._config = config
        self._start = start
        self._interrupted_at = 0.0
        self.system = start.system
        self.settings = start.settings
        self.models = Loading(self, engine, start.target, start.drafter)
        self.conversation = self._new_conversation()
        self.transcript = Transcript()
        self.composer = Composer(self._prompts, self._choices)
        self.streaming = Streaming(self, engine)
        self.revising = Revising(self)
        self._title = TitleBar(id="title")
        self._panel = Panel()
        self._status = StatusLine()

    def compose(self) -> ComposeResult:
        yield self._title
        with Horizontal(id="main"):
            with Vertical(id="left"):
                yield self.transcript
                yield self._status
                yield self.composer
            yield self._panel
        yield Footer(compact=True, show_command_palette=False)

    async def on_mount(self) -> None:
        self.set_class(not self._config.panel, "-folded")
        self.streaming.prepare()
        resumed = self._start.session is not None and await self.open_session(self._start.session)
        if not resumed:
            await self.show_branch()
            self.models.start(self.target, self.drafter)
        if self._start.notice:
            await self.transcript.put(Notice(self._start.notice))
        if self._start.prompt:
            await self.send(self._start.prompt)

    @property
    def loaded(self) -> Loaded | None:
        """The models; None while they are being loaded."""
        return None if self.models.under_way else self.streaming.view.loaded

    @property
    def target(self) -> str:
        """The name of the target that is loaded, or being loaded."""
        return self.models.target

    @property
    def drafter(self) -> str:
        """The name of the drafter, as it was asked for."""
        return self.models.drafter

    @property
    def racing(self) -> bool:
        """Whether drafters are being compared, which nothing may slow down."""
        screens = self.app.screen_stack
        return any(isinstance(screen, CompareScreen | ContestScreen) for screen in screens)

    def on_unmount(self) -> None:
        self.streaming.leave()

    @on(Loading.Noted)
    def _loading_noted(self, event: Loading.Noted) -> None:
        self.activity(event.words)

    @on(Loading.Ended)
    async def _loading_ended(self, event: Loading.Ended) -> None:
        self.models.end(event)
        self.activity("")
        if event.words:
            await self.transcript.put(Notice(event.words))
        if event.loaded:
            self.streaming.use(event.loaded)
        self._keep_options()
        self.update_title()
        await self.streaming.begin_waiting()

    # The conversation.

    async def send(self, text: str) -> None:
        """What the user sent: a command, or a message to answer."""
        if self.streaming.replying and not text.lstrip().startswith("/"):
            self.warn("A reply is under way; escape stops it.")
            self.composer.prompt.take_back()
            return
        if await typed.run(self, text):
            return
        if edited := self.revising.edited:
            self.conversation.go_before(edited)
            self.revising.end_editing()
            self.conversation.say(text.strip("\n"))
            await self.show_branch()
        else:
            message = self.conversation.say(text.strip("\n"))
            await self.transcript.add(message, speaker=self.target)
        self.update_title()
        await self.streaming.reply()

    @on(Prompt.Sent)
    async def _sent(self, event: Prompt.Sent) -> None:
        await self.send(event.text)

    async def show_branch(self) -> None:
        """Draw the open branch anew."""
        await self.transcript.show(
            self.conversation.branch, speaker=self.target, version=self.version
        )
        self.update_title()

    def version(self, message: Message) -> tuple[int, int]:
        """Which of how many versions a message is."""
        ids = [other.id for other in self.conversation.versions(message)]
        return ids.index(message.id) + 1, len(ids)

    async def open_session(self, session: int) -> bool:
        """Resume a saved conversation with its model, drafter, settings; False: it is not there."""
        try:
            found = Conversation.open(self._sessions, session, unsaved=self._unsaved)
        except LocalspecError as error:
            self.warn(str(error))
            return False
        if found is None:
            self.warn("This conversation is gone.")
            return False
        self._leave_for(found)
        options = found.options
        self.system = str(options.get("system", ""))
        try:
            self.settings = Settings.of_dict(options.get("settings", {}), "this conversation")
        except LocalspecError as error:
            self.warn(str(error))
        await self.show_branch()
        target = str(options.get("target", self.target))
        drafter = str(options.get("drafter", self.drafter))
        self.models.take(target, drafter)
        return True

    def _leave_for(self, conversation: Conversation) -> None:
        """Go to another conversation, with nothing of this one under way."""
        self.streaming.leave()
        self.revising.end_editing()
        self.conversation = conversation

    def _new_conversation(self) -> Conversation:
        return Conversation(self._sessions, self._options(), unsaved=self._unsaved)

    def _unsaved(self, words: str) -> None:
        self.post_message(self.Unsaved(words))

    @on(Unsaved)
    async def _unsaved_told(self, event: Unsaved) -> None:
        await self.transcript.put(Notice(event.words))

    def _options(self) -> dict[str, object]:
        return {
            "target": self.target,
            "drafter": self.drafter,
            "system": self.system,
            "settings": self.settings.as_dict(),
        }

    def _keep_options(self) -> None:
        self.conversation.set_options(self._options())

    def set_system(self, text: str) -> None:
        self.system = text
        self._keep_options()
        self.notify("The system prompt is set." if text else "There is no system prompt now.")

    def set_settings(self, settings: Settings) -> None:
        self.settings = settings
        self._keep_options()

    def rename(self, title: str) -> None:
        self.conversation.rename(title)
        self.update_title()

    # What is shown around it.

    def activity(self, words: str) -> None:
        """Say what takes its time; empty: nothing does."""
        self._title.activity = words
        self.streaming.view.activity = words
        self.show_figures()

    def show_figures(self) -> None:
        """Draw the panel or the line, whichever is there."""
        self._panel.show(self.streaming.view)
        self._status.show(self.streaming.view)

    def update_title(self) -> None:
        drafter = self.loaded.drafter if self.loaded else self.drafter
        self._title.models = f"{Path(self.target).name} · {Path(drafter).name}"
        self._title.title = self.conversation.title

    def warn(self, words: str) -> None:
        self.notify(words, severity="warning", markup=False)

    def _prompts(self) -> list[str]:
        try:
            return self._sessions.prompts()
        except LocalspecError as error:
            self.warn(str(error))
            return []

    def _choices(self, command: str) -> list[Choice]:
        if command == "model":
            return self.models.targets
        if command == "drafter":
            return self.models.drafters
        if command == "compare":
            rivals = [choice for choice in self.models.drafters if choice.name != PLAIN]
            return [Choice(ALL, "plain decoding and every drafter that fits"), *rivals]
        if command == "set":
            return [
                Choice(option.name, f"{self.settings.shown(option.name)}  {option.help}")
                for option in OPTIONS.values()
            ]
        if command == "theme":
            return [Choice(name) for name in sorted(self.app.available_themes)]
        fixed = {"thinking": ("on", "off"), "copy": ("code",)}
        return [Choice(name) for name in fixed.get(command, ())]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "stop" and not (self.streaming.replying or self.revising.edited):
            # Dimmed in the footer; completions are closed by the same key.
            return True if self.composer.completions.open else None
        return True

    # Actions on the reply.

    def action_stop(self) -> None:
        if self.composer.completions.open:
            self.composer.completions.show([])
        elif self.streaming.replying:
            self.streaming.stop()
        elif self.revising.edited:
            self.composer.prompt.empty()
            self.revising.end_editing()

    def action_interrupt(self) -> None:
        selected = self.get_selected_text() or self.composer.prompt.selected_text
        if selected:
            self.copy(selected, "selection")
            self.clear_selection()
        elif self.streaming.replying:
            self.streaming.stop()
        elif time.monotonic() - self._interrupted_at < _QUIT_WITHIN_S:
            self.app.exit()
        else:
            self._interrupted_at = time.monotonic()
            self.notify("Once more quits.", timeout=_QUIT_WITHIN_S)

    async def action_regenerate(self) -> None:
        await self.revising.regenerate()

    async def action_continue(self) -> None:
        await self.revising.go_on()

    # Actions on messages.

    def action_edit_last(self) -> None:
        self.revising.edit_last()

    @on(MessageView.Asked)
    async def _asked(self, event: MessageView.Asked) -> None:
        await self.revising.asked(event.view, event.what)

    @on(MessageView.VersionAsked)
    async def _version_asked(self, event: MessageView.VersionAsked) -> None:
        await self.revising.show_version(event.view, event.step)

    @on(MessageView.CopyAsked)
    def _copy_asked(self, event: MessageView.CopyAsked) -> None:
        self.copy(event.text, event.what)

    def copy(self, text: str, what: str) -> None:
        taking.copy(self, text, what)

    def action_copy_reply(self) -> None:
        taking.copy_reply(self)

    def action_copy_code(self) -> None:
        taking.copy_code(self)

    def action_select_last(self) -> None:
        if views := self.transcript.views:
            views[-1].focus()

    # Actions on the conversation.

    async def action_new(self) -> None:
        self.system = self._start.system
        self._leave_for(self._new_conversation())
        await self.show_branch()

    def action_export(self, file: str = "") -> None:
        taking.export(self, file)

    def has_no_thinking(self) -> bool:
        """Whether the template has no switch for thinking; the user is told that."""
        loaded = self.loaded
        if loaded is None or loaded.can_switch_thinking:
            return False
        self.warn(f"The template of {loaded.target} has no switch for thinking.")
        return True

    def action_thinking(self) -> None:
        if self.has_no_thinking():
            return
        self.set_settings(replace(self.settings, thinking=not self.settings.thinking))
        self.notify(f"Thinking is {'on' if self.settings.thinking else 'off'}.")

    # Dialogs.

    def action_sessions(self, search: str = "") -> None:
        dialogs.sessions(self, self._sessions, search)

    def action_rename(self) -> None:
        dialogs.rename(self)

    def action_model(self) -> None:
        dialogs.model(self)

    def action_drafter(self) -> None:
        dialogs.drafter(self)

    def action_settings(self) -> None:
        dialogs.settings(self)

    def action_system(self) -> None:
        dialogs.system(self)

    def action_help(self) -> None:
        dialogs.help(self, self._config)

    def action_stats(self) -> None:
        dialogs.stats(self)

    def action_compare(self, names: str = "") -> None:
        dialogs.compare(self, self._engine, names.split())

    def action_editor(self) -> None:
        dialogs.editor(self)

    # Actions on the screen.

    def action_origins(self) -> None:
        self.transcript.origins = not self.transcript.origins

    def action_panel(self) -> None:
        self.toggle_class("-folded")
        self.call_after_refresh(self.show_figures)

    def action_read_back(self) -> None:
        self.transcript.scroll_page_up(animate=False)

    def action_read_on(self) -> None:
        self.transcript.read_on()

    def action_follow(self) -> None:
        self.transcript.follow()
