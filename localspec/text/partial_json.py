"""A JSON object as it is being written: what of it can be shown, and how it would have to end.

Pure, and indifferent to how the text is cut into pieces. What is shown so far plus `closing` is valid
JSON at any moment, so that a reader who is left in the middle can be given an object all the same.
"""

from __future__ import annotations

import re

_WHITESPACE = " \t\r\n"
_SCALAR = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null")
_HEX = re.compile(r"[0-9a-fA-F]{0,4}")


class PartialJson:
    """Follows one object, from its opening brace.

    Attributes:
        complete: the object has ended; nothing more is taken.
        broken: what came next was not JSON; nothing more is taken.
    """

    def __init__(self) -> None:
        self.complete = False
        self.broken = False
        self._open: list[str] = []  # closing brackets that are due
        self._expect = "object"
        self._held = ""  # of no use unless more comes: a key, a comma, half a number
        self._escape = ""
        self._number = ""  # or another scalar, as far as it was read
        self._is_key = False

    @property
    def closing(self) -> str:
        """What would make an object of what was shown."""
        if self.complete or not self._open:
            return ""
        in_value = self._expect == "string" and not self._is_key
        return '"' * in_value + "".join(reversed(self._open))

    @property
    def ended(self) -> bool:
        return self.complete or self.broken

    def push(self, text: str) -> tuple[str, int]:
        """Take text; give what can be shown of it, and how many characters were taken."""
        shown: list[str] = []
        for index, character in enumerate(text):
            if self.ended:
                return "".join(shown), index
            shown.append(self._take(character))
        return "".join(shown), len(text)

    def _take(self, character: str) -> str:
        if self._expect == "string":
            return self._string(character)
        if self._expect == "scalar":
            return self._scalar(character)
        if character in _WHITESPACE:
            return self._hold(character)
        if self._expect in ("value", "value or end") and character not in "]":
            return self._value(character)
        return self._punctuation(character)

    def _punctuation(self, character: str) -> str:
        expect = self._expect
        if expect == "object" and character == "{":
            return self._enter("}", "key or end")
        if expect in ("key", "key or end") and character == '"':
            self._expect, self._is_key = "string", True
            return self._hold(character)
        if expect == "colon" and character == ":":
            self._expect = "value"
            return self._hold(character)
        if expect == "comma or end" and character == ",":
            self._expect = "key" if self._open[-1] == "}" else "value"
            return self._hold(character)
        if expect.endswith("or end") and character == self._open[-1]:
            return self._leave()
        return self._break()

    def _value(self, character: str) -> str:
        if character == "{":
            return self._enter("}", "key or end")
        if character == "[":
            return self._enter("]", "value or end")
        if character == '"':
            self._expect, self._is_key = "string", False
            return self._show(character)
        if character in "-0123456789tfn":
            self._expect, self._number = "scalar", character
            return ""
        return self._break()

    def _string(self, character: str) -> str:
        if self._escape:
            self._escape += character
            digits = self._escape[2:] if self._escape[1] == "u" else ""
            if self._escape[1] not in '"\\/bfnrtu' or not _HEX.fullmatch(digits):
                return self._break()
            if self._escape[1] == "u" and len(digits) < 4:
                return ""
            character, self._escape = self._escape, ""
        elif character == "\\":
            self._escape = character
            return ""
        elif character == '"':
            if self._is_key:
                self._expect = "colon"
                return self._hold(character)
            self._expect = "comma or end"
            return self._show(character)
        elif character < " ":
            return self._break()
        return self._hold(character) if self._is_key else self._show(character)

    def _scalar(self, character: str) -> str:
        if character.isalnum() or character in "+-.":
            self._number += character
            return ""
        if not _SCALAR.fullmatch(self._number):
            return self._break()
        self._expect = "comma or end"
        return self._show(self._number) + self._take(character)

    def _enter(self, closing: str, expect: str) -> str:
        self._open.append(closing)
        self._expect = expect
        return self._show("{" if closing == "}" else "[")

    def _leave(self) -> str:
        closing = self._open.pop()
        self._expect = "comma or end"
        self.complete = not self._open
        return self._show(closing)

    def _hold(self, text: str) -> str:
        self._held += text
        return ""

    def _show(self, text: str) -> str:
        shown, self._held = self._held + text, ""
        return shown

    def _break(self) -> str:
        self.broken, self._held = True, ""
        return ""
