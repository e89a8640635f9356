"""How replies are generated: values that can be set while chatting, with their ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from localspec.errors import UsageError

_YES = ("on", "yes", "true", "1")
_NO = ("off", "no", "false", "0")


@dataclass(frozen=True, slots=True)
class Settings:
    """Named as in `localspec.model.Model.stream`.

    Attributes:
        temperature: 0 takes the most likely token.
        top_p, top_k, min_p, repetition_penalty: filters and penalty.
        max_tokens: most tokens of a reply; None: as many as fit.
        seed: None: a new one each time.
        width: drafts a round verifies; None: learnt.
        thinking: whether the model thinks first, where its template has the switch.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    seed: int | None = None
    width: int | None = None
    thinking: bool = True

    def changed(self, name: str, text: str) -> Settings:
        """A copy with one value read from what a user typed.

        Raises:
            UsageError: no such setting, or a value out of range.
        """
        option = OPTIONS.get(name.replace("-", "_"))
        if option is None:
            raise UsageError(f"there is no setting '{name}'; there are {', '.join(OPTIONS)}")
        return replace(self, **{option.name: option.read(text)})

    def shown(self, name: str) -> str:
        """A value as a user would type it."""
        value = getattr(self, name)
        if value is None:
            return OPTIONS[name].none
        return ("on" if value else "off") if isinstance(value, bool) else f"{value:g}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_dict(cls, values: Mapping[str, Any], source: str) -> Settings:
        """Settings from stored or configured values; names that are missing keep their defaults.

        Raises:
            UsageError: an unknown name or a bad value, with the source.
        """
        settings = cls()
        for name, value in values.items():
            try:
                text = OPTIONS[name].none if value is None and name in OPTIONS else str(value)
                settings = settings.changed(name, text)
            except UsageError as error:
                raise UsageError(f"{source}: {error}") from None
        return settings


@dataclass(frozen=True, slots=True)
class Option:
    """One setting, for people: its range in words, and how a typed value is read."""

    name: str
    help: str
    range: str
    kind: Callable[[str], Any]
    fits: Callable[[Any], bool]
    none: str = ""

    def read(self, text: str) -> Any:
        """The value of a typed text.

        Raises:
            UsageError: it is not in the range.
        """
        text = text.strip().lower()
        if self.none and text == self.none:
            return None
        try:
            value = self.kind(text)
        except ValueError:
            value = None
        if value is None or not self.fits(value):
            raise UsageError(f"{self.name} must be {self.range}, not '{text}'")
        return value


def _switch(text: str) -> bool:
    if text not in _YES + _NO:
        raise ValueError
    return text in _YES


OPTIONS = {
    option.name: option
    for option in (
        Option(
            "temperature",
            "0 takes the most likely token; higher is livelier",
            "a number from 0 to 2",
            float,
            lambda value: 0 <= value <= 2,
        ),
        Option(
            "top_p",
            "keep the likeliest tokens up to this sum",
            "a number above 0, up to 1",
            float,
            lambda value: 0 < value <= 1,
        ),
        Option(
            "top_k",
            "keep the k likeliest tokens; 0: all",
            "a whole number from 0",
            int,
            lambda value: value >= 0,
        ),
        Option(
            "min_p",
            "keep tokens this likely, relative to the best",
            "a number from 0 to 1",
            float,
            lambda value: 0 <= value <= 1,
        ),
        Option(
            "repetition_penalty",
            "above 1 discourages tokens that were used; 1: none",
            "a number above 0",
            float,
            lambda value: 0 < value < float("inf"),
        ),
        Option(
            "max_tokens",
            "most tokens of a reply",
            "a whole number from 1, or max (as many as fit)",
            int,
            lambda value: value >= 1,
            "max",
        ),
        Option(
            "seed",
            "the same seed gives the same reply",
            "a whole number from 0, or random",
            int,
            lambda value: value >= 0,
            "random",
        ),
        Option(
            "width",
            "drafts that a round verifies",
            "a whole number from 0, or auto (learnt from what rounds cost and accept)",
            int,
            lambda value: value >= 0,
            "auto",
        ),
        Option(
            "thinking",
            "think before answering, where the model's template has the switch",
            "on or off",
            _switch,
            lambda value: True,
        ),
    )
}

assert list(OPTIONS) == [field.name for field in fields(Settings)]
