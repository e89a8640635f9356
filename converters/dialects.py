"""Whose checkpoint a folder is: dialect and family, by configuration and tensor names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from localspec.converters import mtp
from localspec.converters.data import table
from localspec.errors import CheckpointRefused, UsageError

Family = Literal["block", "eagle3", "mtp"]

_PARTS = ("with_dflash_config", "architectures")
_TABLE = table("dialects")
DIALECTS: dict[str, set[Family]] = {
    "speculators": {"block", "eagle3", "mtp"},
    "safeailab": {"eagle3"},
    **{name: {"mtp"} for name in _TABLE["native"].values()},
}
for _name, _family in (pair for part in _PARTS for pair in _TABLE[part].values()):
    DIALECTS.setdefault(_name, set()).add(_family)
_MARKS: tuple[tuple[re.Pattern[str], Family], ...] = (
    (re.compile(r"\b(eh_proj|enorm|hnorm|pre_fc_norm_hidden|hidden_layernorm)\."), "mtp"),
    (re.compile(r"\b(midlayer|layers\.0\.hidden_norm)\."), "eagle3"),
    (re.compile(r"\b(context_proj|markov_head|hidden_correction)\.|_proj_target\."), "block"),
)


class Dialect(NamedTuple):
    """Whose conventions hold, and which file of the converters reads it."""

    name: str
    family: Family


def recognise(config: dict[str, Any], forced: str | None = None) -> Dialect:
    """The dialect by config.json; what the tensors are is for the family's file to see.

    Raises:
        CheckpointRefused: no architecture, or one that is not supported, by name.
        UsageError: `forced` is no dialect.
    """
    if forced is not None and forced not in DIALECTS:
        raise UsageError(
            f"no dialect is called '{forced}'; there are {', '.join(sorted(DIALECTS))}"
        )
    found = _recognise(config)
    return Dialect(forced, found.family) if forced else found


def is_drafter(config: dict[str, Any]) -> bool:
    """Whether this is the config.json of a drafter alone, not of a whole target."""
    try:
        name = _recognise(config).name
    except CheckpointRefused:
        return False
    return name == "qwen3_mtp" or name not in _TABLE["native"].values()


def _recognise(config: dict[str, Any]) -> Dialect:
    listed = config.get("architectures")
    if "format_version" in config and "architecture" in config:
        raise CheckpointRefused(
            "config.json is that of a localspec drafter, which needs no converting"
        )
    if not isinstance(listed, list) or not listed or not isinstance(listed[0], str):
        raise CheckpointRefused("config.json names no architectures, so nobody knows what this is")
    architecture = listed[0]
    if architecture in _TABLE["refused"]:
        raise CheckpointRefused(f"{architecture}: {_TABLE['refused'][architecture]}")
    kind = config.get("speculators_model_type")
    if kind is not None:
        families: dict[Any, Family] = {"eagle3": "eagle3", "mtp": "mtp"}
        if kind not in ("eagle3", "mtp", "dflash", "dspark", "dflare", "dfly"):
            raise CheckpointRefused(
                f"config.json: speculators_model_type {kind!r} is not supported"
            )
        return Dialect("speculators", families.get(kind, "block"))
    for part in _PARTS if "dflash_config" in config else _PARTS[1:]:
        if architecture in _TABLE[part]:
            return Dialect(*_TABLE[part][architecture])
    if architecture == "LlamaForCausalLM" and "draft_vocab_size" in config:
        return Dialect("safeailab", "eagle3")
    native = _TABLE["native"].get(str(config.get("model_type")))
    if native and mtp.is_native(config):
        return Dialect(native, "mtp")
    raise CheckpointRefused(f"{architecture} is no drafter that localspec knows")


def confirm(dialect: Dialect, names: Iterable[str]) -> Dialect:
    """The dialect with the family that the tensors are of: names beat the configuration."""
    for part, family in _MARKS:
        if any(part.search(name) for name in names):
            return dialect._replace(family=family)
    return dialect
