"""JSON to dataclasses, by their annotations: what config.json may hold, and nothing else."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Literal, TypeVar

from localspec.errors import CheckpointRefused

T = TypeVar("T")


def decode(kind: type[T], value: Any, path: str) -> T:
    """A dataclass out of JSON's values, by its annotations.

    Args:
        path: names the place in messages; empty: the whole.

    Raises:
        CheckpointRefused: an unknown or missing key, or a value of the wrong type.
    """
    if not isinstance(value, dict):
        raise CheckpointRefused(f"{path or 'config.json'} must be an object, not {value!r}")
    prefix = f"{path}." if path else ""
    fields = {item.name: item for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in value:
        if key not in fields:
            raise CheckpointRefused(f"{prefix}{key} is no key of a localspec drafter")
    for name, item in fields.items():
        if name not in value and item.default is dataclasses.MISSING:
            raise CheckpointRefused(f"{prefix}{name} is missing")
    hints = typing.get_type_hints(kind)
    return kind(**{key: _value(hints[key], item, prefix + key) for key, item in value.items()})


def _value(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):  # only ever `X | None`
        return None if value is None else _value(arguments[0], value, path)
    if origin is Literal:
        if value not in arguments:
            raise CheckpointRefused(f"{path} must be one of {', '.join(arguments)}, not {value!r}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise CheckpointRefused(f"{path} must be a list, not {value!r}")
        return tuple(_value(arguments[0], item, path) for item in value)
    if dataclasses.is_dataclass(hint):
        return decode(typing.cast(type[Any], hint), value, path)
    plain = origin or hint
    if plain is float and type(value) is int:
        return float(value)
    if type(value) is not plain:
        raise CheckpointRefused(f"{path} must be of type {plain.__name__}, not {value!r}")
    return value
