"""What kind of text a prompt asks for: code, math, editing or chat; a cheap guess from its words."""

from __future__ import annotations

import re
from typing import Literal

Kind = Literal["code", "math", "editing", "chat"]

_TAIL = 6000
_EDITS = re.compile(
    r"\b(rewrite|rephrase|rename|replace|correct|fix|edit|refactor|proofread|translate|repeat"
    r"|return (?:this|the whole)|turn this|in this \w+)\b",
    re.IGNORECASE,
)
_CODE = re.compile(
    r"```|\b(python|javascript|typescript|java|rust|golang|sql|html|css|bash|shell script|regex"
    r"|function|class|method|compile|code|script|algorithm|def |assert)\b|[{};]\s*$",
    re.IGNORECASE | re.MULTILINE,
)
_MATH = re.compile(
    r"\b(how (?:many|much|long|old|far)|solve|calculate|compute|sum of|product of|equation|percent"
    r"|probability|perimeter|area|integral|derivative|remainder|prime|triangle)\b|\d\s*[-+*/^=]\s*\d",
    re.IGNORECASE,
)
_BODY = 250
"""An instruction that comes with more text than this is about that text."""


def kind_of(text: str) -> Kind:
    """The kind of a prompt, by its end if it is long."""
    text = text[-_TAIL:]
    if len(text) > _BODY and _EDITS.search(text):
        return "editing"
    if _CODE.search(text):
        return "code"
    numbers = len(re.findall(r"\d+", text))
    if _MATH.search(text) and numbers >= 2:
        return "math"
    return "chat"
