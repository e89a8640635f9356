"""Stop strings: text that ends a generation and is not shown."""

from __future__ import annotations

from collections.abc import Iterable

from localspec.errors import UsageError


class StopStrings:
    """Filters streamed text up to the first stop string, however the text is cut into pieces.

    The stop string that is complete first ends the text; of several that end together, the longest.

    Args:
        stops: any number of texts.

    Raises:
        UsageError: a stop string is empty.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        if not all(self._stops):
            raise UsageError("a stop string must not be empty")
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """Take new text; give what may be shown, and whether a stop string has ended it."""
        if self._stopped:
            return "", True
        text = self._held + text
        matches = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if matches:
            self._stopped, self._held = True, ""
            return text[: min(matches)[1]], True
        num_held = self._num_held(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held], False

    def flush(self) -> str:
        """The text that was held back, when no more comes."""
        held, self._held = self._held, ""
        return held

    def _num_held(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop string."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
