"""Request models that bear what clients send: nulls are absent, unknown fields are let through."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from localspec.server.errors import bad

_SHORT = 160

Limit = Annotated[int, Field(ge=-1, lt=2**31)]
"""Of tokens; -1 is none."""


class Lenient(BaseModel):
    """A JSON object whose nulls mean that the field is absent."""

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: field for name, field in value.items() if field is not None}


class SamplingFields(Lenient):
    """What every generating route takes."""

    model: str | None = None
    stream: bool = False
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    drafter: str | None = None
    width: Annotated[int, Field(ge=0, le=64)] | Literal["auto"] | None = None


class StreamOptions(Lenient):
    include_usage: bool = False


Parsed = TypeVar("Parsed", bound=BaseModel)


def parse(model: type[Parsed], body: dict[str, Any]) -> Parsed:
    """A request of this kind.

    Raises:
        ApiError: 400, naming the first field that is wrong.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        param = _path(body, first["loc"])
        given = repr(first["input"])
        given = given if len(given) <= _SHORT else given[:_SHORT] + "..."
        if first["type"] == "missing":
            raise bad(f"{param} is missing", param) from None
        reason = first["msg"].removeprefix("Value error, ")
        raise bad(f"{param}: {reason[0].lower() + reason[1:]}, not {given}", param) from None


def _path(body: Any, location: tuple[int | str, ...]) -> str:
    """The field's path as clients write it; pydantic adds the branches of unions to it."""
    parts: list[str] = []
    for index, part in enumerate(location):
        try:
            body = body[part]
        except (LookupError, TypeError):
            if index != len(location) - 1 or not isinstance(body, dict):
                continue
        parts.append(str(part))
    return ".".join(parts) or "body"
