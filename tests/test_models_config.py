"""The drafter's configuration: JSON and back, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_models_drafters import CONFIGS

from localspec.errors import CheckpointRefused
from localspec.models.config import DrafterConfig


@pytest.mark.parametrize("name", CONFIGS)
def test_json_and_back(name: str) -> None:
    text = json.dumps(CONFIGS[name].to_json())
    assert DrafterConfig.from_json(json.loads(text)) == CONFIGS[name]


def changed(name: str, path: str, value: Any) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(json.dumps(CONFIGS[name].to_json()))
    place = values
    *outer, key = path.split(".")
    for step in outer:
        place = place[step]
    place[key] = value
    return values


@pytest.mark.parametrize(
    ("name", "path", "value", "named"),
    [
        ("dflash", "colour", 1, "colour"),
        ("dflash", "block.colour", 1, "block.colour"),
        ("dflash", "architecture", "dflash2", "architecture"),
        ("dflash", "format_version", 2, "format_version"),
        ("dflash", "hidden_size", 10**12, "hidden_size"),
        ("dflash", "hidden_size", float("nan"), "hidden_size"),
        ("dflash", "hidden_size", "32", "hidden_size"),
        ("dflash", "hidden_size", True, "hidden_size"),
        ("dflash", "hidden_size", 40, "target_hidden_size"),
        ("dflash", "num_kv_heads", 3, "num_kv_heads"),
        ("dflash", "num_layers", 3, "num_layers"),
        ("dflash", "rms_norm_eps", 0.0, "rms_norm_eps"),
        ("dflash", "rms_norm_eps", float("inf"), "rms_norm_eps"),
        ("dflash", "rope.theta", -1.0, "rope.theta"),
        ("dflash", "rope.dims", 7, "rope.dims"),
        ("dflash", "rope.dims", 10, "rope.dims"),
        ("dflash", "rope.scaling", 3, "rope.scaling"),
        ("dflash", "tap_layers", [1, 3, 8], "tap_layers"),
        ("dflash", "tap_layers", [1, 3, 3], "tap_layers"),
        ("dflash", "tap_layers", [-2, 3, 4], "tap_layers"),
        ("dflash", "tap_layers", [], "tap_layers"),
        ("dflash", "tap_layers", 3, "tap_layers"),
        ("dflash", "draft_vocab_size", 62, "draft_vocab_size"),
        ("dflash", "draft_vocab_size", 60, "own_head"),
        ("dflash", "block", None, "block"),
        ("dflash", "block.mask_token_id", 61, "mask_token_id"),
        ("dflash", "block.mask_token_id", -1, "mask_token_id"),
        ("dflash", "block.block_size", 1, "block.block_size"),
        ("dflash", "block.layout", "chain", "block.layout"),
        ("dflash", "block.correction_size", 3, "block.correction_size"),
        ("dflash", "block.markov", {"kind": "vanilla", "rank": 3}, "block.markov"),
        ("dflash-windows", "block.layers", [{"window": 0}, {}], "window"),
        ("dfly", "block.correction_size", None, "block.correction_size"),
        ("dspark", "block.markov", None, "with_markov"),
        ("dspark", "block.markov.kind", "gru", "block.markov.kind"),
        ("eagle3", "num_layers", 2, "num_layers"),
        ("eagle3", "chain.tap_norm", "some", "chain.tap_norm"),
        ("mtp", "tap_layers", [3], "tap_layers"),
        ("mtp-gated", "chain.mixture.num_chosen", 7, "num_chosen"),
        ("mtp-gated", "chain.mixture.num_groups", 4, "num_groups"),
        ("mtp", "quantization", {"bits": 3}, "quantization.bits"),
        ("mtp", "quantization", {"bits": 4, "group_size": 16}, "quantization.group_size"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    name: str, path: str, value: Any, named: str
) -> None:
    values = changed(name, path, value)
    with pytest.raises(CheckpointRefused) as caught:
        DrafterConfig.from_json(values)
    assert named in str(caught.value)


def test_dspark_may_have_a_confidence_head_alone() -> None:
    values = changed("dspark-rnn", "block.markov", None)
    assert DrafterConfig.from_json(values).block is not None


def test_a_missing_key_is_refused_and_a_default_is_not() -> None:
    values = CONFIGS["dflash"].to_json()
    del values["qk_norm"]
    assert not DrafterConfig.from_json(values).qk_norm
    del values["vocab_size"]
    with pytest.raises(CheckpointRefused, match="vocab_size is missing"):
        DrafterConfig.from_json(values)


@pytest.mark.parametrize("values", [None, [], 3, "config"])
def test_what_is_no_object_is_refused(values: Any) -> None:
    with pytest.raises(CheckpointRefused, match=r"config\.json must be an object"):
        DrafterConfig.from_json(values)


def test_layout_names_all_three() -> None:
    assert CONFIGS["dflash"].layout == "anchor_slot_unused"
    assert CONFIGS["dflash-every-slot"].layout == "every_slot_predicts"
    assert CONFIGS["mtp"].layout == "chain"
