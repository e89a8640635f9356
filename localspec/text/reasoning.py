"""Thoughts apart from the answer, in streamed text; pure, and indifferent to how it is cut."""

from __future__ import annotations

from localspec.text.marks import num_held


class ReasoningSplit:
    """Splits text into thoughts and the rest at a pair of marks, which are not shown.

    Thoughts come first if at all. Text that is cut within them is thoughts to its end.

    Args:
        start, end: the marks; None: this text has no thoughts.
        inside: the prompt has opened the thoughts already.
    """

    def __init__(self, start: str | None, end: str | None, *, inside: bool = False) -> None:
        self._start, self._end = start, end
        self._state = "inside" if inside else "before" if start and end else "after"
        self._held = ""
        # No character of what follows a mark was shown yet.
        self._fresh = self._state != "after"

    def push(self, text: str) -> tuple[str, str]:
        """Take new text; give the thoughts and the answer in it."""
        text, self._held = self._held + text, ""
        thoughts = ""
        if self._state == "before":
            text = self._before(text)
        if self._state == "inside":
            thoughts, text = self._inside(text)
        if self._state != "after":
            return thoughts, ""
        return thoughts, self._show(text)

    def flush(self) -> tuple[str, str]:
        """What was held back, when no more comes."""
        held, self._held = self._held, ""
        return (held.rstrip(), "") if self._state == "inside" else ("", held)

    def _before(self, text: str) -> str:
        assert self._start is not None
        stripped = text.lstrip()
        if stripped.startswith(self._start):
            self._state, self._fresh = "inside", True
            return stripped[len(self._start) :]
        if self._start.startswith(stripped):
            self._held = text
            return ""
        self._state = "after"
        self._fresh = False
        return text

    def _inside(self, text: str) -> tuple[str, str]:
        assert self._end is not None
        at = text.find(self._end)
        if at >= 0:
            self._state = "after"
            thoughts = self._show(text[:at].rstrip())
            self._fresh = True
            return thoughts, text[at + len(self._end) :]
        # Blank space before the end mark is not part of the thoughts.
        shown = text[: len(text) - num_held(text, self._end)].rstrip()
        self._held = text[len(shown) :]
        return self._show(shown), ""

    def _show(self, text: str) -> str:
        """Without the blank space between a mark and what follows it."""
        if self._fresh:
            text = text.lstrip()
            self._fresh = not text
        return text
