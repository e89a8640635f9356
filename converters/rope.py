"""Rotary positions out of a foreign config.json, which keeps them in one of several places."""

from __future__ import annotations

from typing import Any

from localspec.converters.foreign import Foreign, refuse
from localspec.models.config import RopeConfig


def read_rope(
    foreign: Foreign,
    head_dim: int,
    *,
    scaled: bool = True,
    theta: float | None = None,
    interleaved: bool = False,
) -> RopeConfig:
    """Rotary positions.

    Args:
        scaled: whether rope_scaling counts.
        theta: the base that holds whatever is written.
        interleaved: neighbours turn together.
    """
    parts: list[dict[str, Any]] = []
    for holder in (foreign.geometry, foreign.config):
        for key in ("rope_parameters", "rope_scaling"):
            part = holder.get(key)
            if isinstance(part, dict):
                parts.append(part)
            elif part is not None:
                refuse(key, "an object", part)
    if theta is None:
        theta = _number(foreign, "rope_theta", parts)
    if theta is None:
        theta = 10000.0
        foreign.warnings.append("rope_theta is not given; 10000 is assumed")
    partial = _number(foreign, "partial_rotary_factor", parts)
    neox = foreign.flag("rope_is_neox_style")
    return RopeConfig(
        theta=theta,
        dims=head_dim if partial is None else int(head_dim * partial),
        traditional=interleaved or neox is False,
        scaling=_scaling(parts) if scaled else None,
        max_position_embeddings=foreign.integer("max_position_embeddings", default=0) or None,
    )


def _number(foreign: Foreign, key: str, parts: list[dict[str, Any]]) -> float | None:
    for part in (foreign.config, foreign.nested, foreign.geometry, *parts):
        value = part.get(key)
        if value is not None:
            if type(value) not in (int, float):
                refuse(key, "a number", value)
            return float(value)
    return None


def _scaling(parts: list[dict[str, Any]]) -> dict[str, Any] | None:
    for part in parts:
        kind = part.get("rope_type", part.get("type", "default"))
        if kind not in ("default", "mrope"):
            # A drafter's positions are linear, whatever the target's images need.
            left_out = ("rope_theta", "mrope_section", "mrope_interleaved", "partial_rotary_factor")
            return {key: value for key, value in part.items() if key not in left_out}
    return None
