"""Stop strings: text that ends a generation and is not shown."""

from __future__ import annotations

from collections.abc import Iterable

from localspec.errors import UsageError
from localspec.text.marks import num_held


class StopStrings:
    """Filters streamed text up to the first stop string, however the text is cut into pieces.

    The stop string that is complete first ends the text; of several that end together, the longest.

    Args:
        stops: any number of texts.

    Attributes:
        matched: the stop string that has ended the text; None so far.

    Raises:
        UsageError: a stop string is empty.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        if not all(self._stops):
            raise UsageError("a stop string must not be empty")
        self._held = ""
        self._stopped = False
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """Take new text; give what may be shown, and whether a stop string has ended it."""
        if self._stopped:
            return "", True
        text = self._held + text
        matches = [
            (at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0
        ]
        if matches:
            _, at, self.matched = min(matches)
            self._stopped, self._held = True, ""
            return text[:at], True
        held = num_held(text, *self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False

    def flush(self) -> str:
        """The text that was held back, when no more comes."""
        held, self._held = self._held, ""
        return held
