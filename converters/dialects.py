"""Whose checkpoint a folder is: dialect and family, by configuration and tensor names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from localspec.converters import mtp
from localspec.errors import CheckpointRefused, UsageError

Family = Literal["block", "eagle3", "mtp"]

DIALECTS = (
    "angelslim",
    "angelspec",
    "deepseek_v3",
    "deepspec",
    "glm4",
    "hy3",
    "mimo",
    "qwen3_5",
    "qwen3_mtp",
    "qwen3_next",
    "safeailab",
    "speculators",
    "specforge",
    "z-lab",
)

_REFUSED = {
    "DFlash2DraftModel": "DFlash 2 adds convolutions and a candidate selector, and is not supported",
    "Qwen3TreeDSparkDFlareModel": "this mix of DFlare and DSpark is not public",
    "Gemma4DSparkModel": "Gemma 4 drafter bodies are not supported",
    "Gemma4Eagle3Model": "Gemma 4 drafter bodies are not supported",
    "Eagle3DeepseekV2ForCausalLM": "EAGLE-3 with latent attention is not supported, since no "
    "reference confirms it",
    "DFly2DraftModel": "DFly 2 is not public",
}
_EAGLE3 = (
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "Qwen3Eagle3Model",
    "Eagle3Speculator",
    "Eagle3DraftModel",
)
_BLOCK = (
    "DFlashDraftModel",
    "DFlashSpeculator",
    "QwenDFlareDraftModel",
    "DFlareDraftModel",
    "QwenDFlashDraftModel",
    "Qwen3DSparkModel",
    "DSparkDraftModel",
    "DSparkSpeculator",
    "Qwen3DFlyModel",
)
_NATIVE = {
    "qwen3_next": "qwen3_next",
    "qwen3_5": "qwen3_5",
    "qwen3_5_moe": "qwen3_5",
    "glm4_moe": "glm4",
    "deepseek_v3": "deepseek_v3",
    "mimo": "mimo",
    "hy_v3": "hy3",
    "qwen3_mtp": "qwen3_mtp",
}


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
        raise UsageError(f"no dialect is called '{forced}'; there are {', '.join(DIALECTS)}")
    found = _recognise(config)
    return Dialect(forced, found.family) if forced else found


def _recognise(config: dict[str, Any]) -> Dialect:
    listed = config.get("architectures")
    if not isinstance(listed, list) or not listed or not isinstance(listed[0], str):
        raise CheckpointRefused("config.json names no architectures, so nobody knows what this is")
    architecture = listed[0]
    if architecture in _REFUSED:
        raise CheckpointRefused(f"{architecture}: {_REFUSED[architecture]}")
    kind = config.get("speculators_model_type")
    if kind is not None:
        families: dict[Any, Family] = {"eagle3": "eagle3", "mtp": "mtp"}
        if kind not in ("eagle3", "mtp", "dflash", "dspark", "dflare", "dfly"):
            raise CheckpointRefused(
                f"config.json: speculators_model_type {kind!r} is not supported"
            )
        return Dialect("speculators", families.get(kind, "block"))
    if architecture in _EAGLE3:
        return Dialect("deepspec" if architecture.startswith("Qwen3") else "angelspec", "eagle3")
    if architecture == "LlamaForCausalLM" and "draft_vocab_size" in config:
        return Dialect("safeailab", "eagle3")
    if architecture in _BLOCK:
        return Dialect(_block_dialect(architecture, config), "block")
    if architecture == "MTPDraftModel":
        return Dialect("angelspec", "mtp")
    model_type = str(config.get("model_type"))
    if model_type in _NATIVE and mtp.is_native(config):
        return Dialect(_NATIVE[model_type], "mtp")
    raise CheckpointRefused(f"{architecture} is no drafter that localspec knows")


def confirm(dialect: Dialect, names: Iterable[str]) -> Dialect:
    """The dialect with the family that the tensors are of: names beat the configuration."""
    for part, family in _MARKS:
        if any(part.search(name) for name in names):
            return dialect._replace(family=family)
    return dialect


def _block_dialect(architecture: str, config: dict[str, Any]) -> str:
    if architecture == "Qwen3DSparkModel":
        return "deepspec"
    if architecture in ("QwenDFlareDraftModel", "QwenDFlashDraftModel"):
        return "angelslim"
    if "dflash_config" in config:
        return "specforge" if architecture.startswith("DSpark") else "z-lab"
    return "angelspec"
