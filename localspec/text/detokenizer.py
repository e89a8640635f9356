"""Token ids to text as they come: complete characters only, the same text as decoding all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_REPLACEMENT = "\ufffd"
_MAX_PENDING = 32
_KEPT = 8
"""More tokens than the bytes of an incomplete character."""


class StreamingDetokenizer:
    """Decodes a stream of token ids with a whole-text decoder, over a short window of the last tokens.

    Args:
        decode: the text of a list of ids; incomplete characters decode to U+FFFD.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._num_shown = 0  # characters of the window's text
        self._num_context = 0  # tokens of the window that are there for their context only

    def push(self, ids: Sequence[int]) -> str:
        """Take new ids; give the characters that they complete."""
        return "".join(map(self._step, ids))

    def finish(self) -> str:
        """The rest, where the ids end within a character."""
        rest = self._decode(self._window)[self._num_shown :] if self._window else ""
        self._window, self._num_shown, self._num_context = [], 0, 0
        return rest

    def _step(self, token: int) -> str:
        # One token at a time, so that the text cannot depend on how the ids are cut into pieces.
        self._window.append(token)
        text = self._decode(self._window)
        complete = len(text.rstrip(_REPLACEMENT))
        if len(self._window) - self._num_context > _MAX_PENDING:
            # No character takes so many tokens: these bytes are not text and stay U+FFFD.
            complete = max(complete, len(text) - 1)
        shown = text[self._num_shown : complete]
        self._num_shown = max(self._num_shown, complete)
        if shown and complete == len(text):
            self._trim(self._num_context, 0)
        elif len(self._window) - self._num_context > _MAX_PENDING:
            self._trim(len(self._window) - _KEPT, len(text) - self._num_shown)
        return shown

    def _trim(self, num_dropped: int, num_unshown: int) -> None:
        """Forget tokens; those since the last complete character stay, as context for spaces."""
        self._window = self._window[num_dropped:]
        self._num_context = len(self._window)
        self._num_shown = max(0, len(self._decode(self._window)) - num_unshown)
