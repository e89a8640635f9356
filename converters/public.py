"""Public drafters and the targets they fit, out of `public.toml`; nothing is fetched from here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from localspec.converters.data import table

_FORMS = {"", "mlx", "bf16", "fp16", "3bit", "4bit", "5bit", "6bit", "8bit", "mxfp4", "dwq"}


@dataclass(frozen=True, slots=True)
class PublicDrafter:
    """A drafter on the Hub and the target it was trained for, both by Hub id."""

    name: str
    architecture: str
    target: str


@cache
def public_drafters() -> tuple[PublicDrafter, ...]:
    """All of them."""
    return tuple(
        PublicDrafter(name, architecture, target)
        for architecture, targets in table("public").items()
        for name, target in targets.items()
    )


def drafters_for(target: str) -> list[PublicDrafter]:
    """Public drafters of a target, by its Hub id; quantised copies count by their name.

    `mlx-community/Qwen3-8B-4bit` is taken for `Qwen/Qwen3-8B`.
    """
    name = _last(target)
    return [
        drafter
        for drafter in public_drafters()
        if name.startswith(fits := _last(drafter.target))
        and _FORMS.issuperset(name.removeprefix(fits).split("-"))
    ]


def _last(hub_id: str) -> str:
    return hub_id.rpartition("/")[2].lower()
