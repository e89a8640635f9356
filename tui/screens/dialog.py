"""What dialogs have in common: a frame with a title, and a way back."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from textual.binding import BindingType
from textual.screen import ModalScreen

from localspec.tui.actions import DIALOG, bindings

Result = TypeVar("Result")


class Dialog(ModalScreen[Result | None]):
    """A dialog; its result is None if it was closed."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(DIALOG)]

    def action_close(self) -> None:
        self.dismiss(None)
