"""Drafters as folders: saved, loaded, quantised, and refused when anything is off."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from test_models_drafters import (
    CONFIGS,
    chain,
    config,
    drafter,
    inputs,
    outcome,
    random_tensors,
    target,
)

from localspec.errors import CheckpointRefused
from localspec.models.config import QuantizationConfig, RopeConfig
from localspec.models.load import (
    WEIGHTS_FILE,
    build,
    expected_tensors,
    load,
    quantize,
    save,
    with_tensors,
)


@pytest.mark.parametrize("name", CONFIGS)
def test_saved_and_loaded_it_drafts_the_same(name: str, tmp_path: Path) -> None:
    settings = CONFIGS[name]
    save(settings, random_tensors(settings), tmp_path)
    loaded, made = load(tmp_path), drafter(settings)
    loaded.bind(target())
    assert loaded.config == settings
    tokens, taps = inputs(settings, 6)
    logits = []
    for each in (loaded, made):
        state = each.new_state()
        each.observe(state, tokens, taps)
        logits.append(outcome(each, state, tokens[:, -1])[1])
    assert mx.array_equal(*logits)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_saved_and_loaded_it_drafts_as_its_rounded_weights_do(
    name: str, bits: int, tmp_path: Path
) -> None:
    settings, tensors = quantize(
        CONFIGS[name], random_tensors(CONFIGS[name]), QuantizationConfig(bits, 32)
    )
    save(settings, tensors, tmp_path)
    rounded = {
        key: mx.dequantize(
            array, tensors[f"{stem}.scales"], tensors[f"{stem}.biases"], group_size=32, bits=bits
        )
        if f"{(stem := key.removesuffix('.weight'))}.scales" in tensors
        else array
        for key, array in tensors.items()
        if not key.endswith((".scales", ".biases"))
    }
    assert expected_tensors(settings) == {key: value.shape for key, value in tensors.items()}
    assert len(rounded) < len(tensors)
    loaded, made = load(tmp_path), with_tensors(CONFIGS[name], rounded, "test")
    for each in (loaded, made):
        each.bind(target())
    tokens, taps = inputs(settings, 6)
    logits = []
    for each in (loaded, made):
        state = each.new_state()
        each.observe(state, tokens, taps)
        logits.append(outcome(each, state, tokens[:, -1])[1])
    assert mx.allclose(*logits, atol=1e-3)


def test_routers_and_single_rows_are_not_quantised() -> None:
    sizes = replace(CONFIGS["mtp-gated"], quantization=QuantizationConfig(4, 32))
    names = expected_tensors(sizes)
    assert "layers.0.mlp.switch_mlp.up_proj.scales" in names
    assert "layers.0.mlp.gate.scales" not in names
    assert "layers.0.mlp.shared_expert_gate.scales" not in names


def test_the_same_tensors_give_the_same_bytes(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIGS["dfly"])
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, order in zip(folders, (sorted(tensors), sorted(tensors)[::-1]), strict=True):
        folder.mkdir()
        save(CONFIGS["dfly"], {name: tensors[name] for name in order}, folder)
    for name in ("config.json", WEIGHTS_FILE):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


def test_expected_tensors_of_a_large_drafter_allocate_nothing() -> None:
    large = replace(
        chain("mtp"),
        hidden_size=2**16,
        target_hidden_size=2**16,
        intermediate_size=2**18,
        vocab_size=2**20,
        draft_vocab_size=2**20,
    )
    before = mx.get_active_memory()
    assert expected_tensors(large)["eh_proj.weight"] == (2**16, 2**17)
    assert mx.get_active_memory() - before < 2**20


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("fc.weight", None, "has no tensor fc.weight"),
        ("extra.weight", mx.zeros((3,)), "extra.weight, which this drafter does not use"),
        ("fc.weight", mx.zeros((96, 32)), r"fc.weight .* shape \[96, 32\].*\[32, 96\]"),
        ("norm.weight", mx.zeros((32,), dtype=mx.int32), r"norm.weight .* type"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(
    name: str, change: mx.array | None, message: str
) -> None:
    tensors = random_tensors(CONFIGS["dflash"])
    tensors.pop(name, None)
    if change is not None:
        tensors[name] = change
    with pytest.raises(CheckpointRefused, match=message):
        with_tensors(CONFIGS["dflash"], tensors, "here")


@pytest.mark.parametrize("offset", [-1, 60])
def test_a_d2t_that_leads_outside_the_vocabulary_is_refused(offset: int) -> None:
    tensors = random_tensors(CONFIGS["eagle3"])
    tensors["d2t"] = mx.full((23,), offset, dtype=mx.int32)
    with pytest.raises(CheckpointRefused, match="d2t in here"):
        with_tensors(CONFIGS["eagle3"], tensors, "here")


def test_broken_files_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointRefused, match=r"config\.json cannot be read"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("architecture: dflash")
    with pytest.raises(CheckpointRefused, match=r"config\.json is not JSON"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "dflash"}))
    with pytest.raises(CheckpointRefused, match=r"config\.json: hidden_size is missing"):
        load(tmp_path)
    save(CONFIGS["dflash"], random_tensors(CONFIGS["dflash"]), tmp_path)
    weights = tmp_path / WEIGHTS_FILE
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointRefused, match=WEIGHTS_FILE):
        load(tmp_path)
    weights.unlink()
    with pytest.raises(CheckpointRefused, match=WEIGHTS_FILE):
        load(tmp_path)


@pytest.mark.parametrize("scaling", [{"rope_type": "spiral"}, {"rope_type": "llama3"}])
def test_a_rotary_scaling_that_is_not_known_is_refused(scaling: dict[str, str]) -> None:
    rope = RopeConfig(10000.0, 8, scaling=scaling)
    with pytest.raises(CheckpointRefused, match=r"rope\.scaling"):
        build(config("dflash", rope=rope, block=CONFIGS["dflash"].block))


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize(
    "scaling",
    [
        None,
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
)
def test_each_rotary_scaling_changes_the_drafts(
    scaling: dict[str, object] | None, traditional: bool
) -> None:
    plain = CONFIGS["dflash"]
    rope = RopeConfig(10000.0, 8, traditional, scaling, 128)
    tokens, taps = inputs(plain, 40)
    logits = []
    for settings in (plain, replace(plain, rope=rope)):
        made = drafter(settings)
        state = made.new_state()
        made.observe(state, tokens, taps)
        logits.append(outcome(made, state, tokens[:, -1])[1])
    same = scaling is None and not traditional
    assert bool(mx.allclose(*logits, atol=1e-3)) == same
