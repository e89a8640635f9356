"""Types of arguments that users pass from Python, checked by the annotations they are declared with."""

from __future__ import annotations

import functools
import inspect
import numbers
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from localspec.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

_PLAIN: dict[Any, tuple[Any, str]] = {
    str: (str, "text"),
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    bool: (bool, "true or false"),
    type(None): (type(None), "None"),
    Sequence: (Sequence, "a list"),
    Mapping: (Mapping, "a mapping"),
    Callable: (Callable, "a function"),
}


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse arguments of another type than the function declares with `UsageError`, by name."""
    signature = inspect.signature(function)

    @functools.cache
    def hints() -> dict[str, Any]:
        return typing.get_type_hints(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            hint = hints().get(name)
            if hint is not None and not _fits(hint, value):
                raise UsageError(f"{name} must be {_said(hint)}, not {value!r:.80}")
        return function(*args, **kwargs)

    return call


def _fits(hint: Any, value: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(one, value) for one in arguments)
    kind = _PLAIN.get(origin or hint)
    if kind is None:
        return True
    if not isinstance(value, kind[0]) or (isinstance(value, bool) and hint in (int, float)):
        return False
    if origin is not Sequence:
        return True
    items: Any = value
    # Text is a sequence too, of texts.
    return not isinstance(value, str) and all(_fits(arguments[0], item) for item in items)


def _said(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_said(one) for one in arguments)
    kind = _PLAIN.get(origin or hint)
    if kind is None:
        return str(hint)
    return f"{kind[1]} of {_plural(arguments[0])}" if origin is Sequence else kind[1]


def _plural(hint: Any) -> str:
    return {str: "texts", int: "whole numbers"}.get(hint, "mappings")
