"""Conversion against broken tensors and settings: each is refused by its own name, and never crashes."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from golden_cases import GoldenCase

from localspec.cli import run
from localspec.converters import convert as conversion
from localspec.converters.convert import Converted, convert, translate
from localspec.converters.foreign import Options, TargetFacts
from localspec.converters.reading import Checkpoint, read_checkpoint
from localspec.errors import CheckpointRefused, DrafterMismatch, LocalspecError
from localspec.models import load
from localspec.models.config import DrafterConfig

GOLDEN = Path(__file__).parent / "golden"
CASES = [
    "tiny-dflash-angelspec",
    "tiny-dflare-angelspec",
    "dspark-speculators",
    "dspark-deepspec-rnn",
    "tiny-eagle3-angelspec",
    "eagle3-angelspec-31",
    "eagle3-angelspec-wide",
    "mtp-angelspec-moe",
    "mtp-glm4-native",
    "mtp-hy3-converted",
    "mtp-mimo-native",
    "mtp-qwen3next-native",
]
# Copies of the target's, and what a checkpoint may lack.
UNUSED = ("embed_tokens.weight", "shared_head.head.weight", "t2d")
OPTIONAL = ("confidence_head.proj.bias",)
COPIED_HEADS = ("dspark-deepspec-rnn",)
OPTIONAL_HEADS = ("tiny-eagle3-angelspec", "eagle3-angelspec-31")


def is_used(case: str, tensor: str) -> bool:
    if case == "eagle3-angelspec-wide":
        return True
    return not tensor.endswith(UNUSED) and not (tensor == "lm_head.weight" and case in COPIED_HEADS)


def is_needed(case: str, tensor: str) -> bool:
    may_lack = tensor.endswith(OPTIONAL) or (tensor == "lm_head.weight" and case in OPTIONAL_HEADS)
    return is_used(case, tensor) and not may_lack


class Source:
    """A golden case whose settings and tensors are replaced in memory."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        case = GoldenCase.read(GOLDEN / name)
        self.folder, self._patch = GOLDEN / name, monkeypatch
        self.facts = TargetFacts(
            case.target.hidden_size, case.target.vocab_size, case.facts["target_layers"]
        )
        self.read = read_checkpoint(self.folder)

    def translate(
        self,
        config: dict[str, Any] | None = None,
        tensors: dict[str, mx.array] | None = None,
        *,
        target: TargetFacts | None = None,
        options: Options | None = None,
    ) -> Converted:
        config = self.read.config if config is None else config
        tensors = self.read.tensors if tensors is None else tensors
        self._patch.setattr(conversion, "read_config", lambda folder: config)
        self._patch.setattr(
            conversion,
            "read_checkpoint",
            lambda source, only=None: Checkpoint(
                self.folder,
                config,
                {name: array for name, array in tensors.items() if not only or only(name)},
                [],
            ),
        )
        return translate(self.folder, target=target, options=options)


def misshapen(array: mx.array) -> Iterator[mx.array]:
    """The array in shapes and of types that it must not have."""
    yield mx.array(1.0)
    yield array.reshape(-1)
    yield array[None]
    yield array[:-1]
    yield array[:0]
    yield array.astype(mx.float32 if mx.issubdtype(array.dtype, mx.integer) else mx.int32)
    if array.ndim > 1:
        yield mx.swapaxes(array, -1, -2)
        yield array[..., :-1]


@pytest.mark.parametrize("name", CASES)
def test_a_missing_tensor_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(name, monkeypatch)
    for missing in source.read.tensors:
        if not is_needed(name, missing):
            continue
        tensors = {key: array for key, array in source.read.tensors.items() if key != missing}
        with pytest.raises(CheckpointRefused) as refusal:
            source.translate(tensors=tensors, target=source.facts)
        assert missing in str(refusal.value)


@pytest.mark.parametrize("name", CASES)
def test_a_misshapen_tensor_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(name, monkeypatch)
    for broken, array in source.read.tensors.items():
        if not is_used(name, broken):
            continue
        for other in misshapen(array):
            if (other.shape, other.dtype) == (array.shape, array.dtype):
                continue
            for target in (source.facts, None):
                with pytest.raises(LocalspecError):
                    source.translate(tensors={**source.read.tensors, broken: other}, target=target)


@pytest.mark.parametrize("name", CASES)
def test_a_transposed_matrix_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(name, monkeypatch)
    for broken, array in source.read.tensors.items():
        if array.ndim < 2 or array.shape[-1] == array.shape[-2] or not is_used(name, broken):
            continue
        turned = {**source.read.tensors, broken: mx.swapaxes(array, -1, -2)}
        with pytest.raises(CheckpointRefused) as refusal:
            source.translate(tensors=turned, target=source.facts)
        assert broken in str(refusal.value)


@pytest.mark.parametrize("name", CASES)
def test_an_unexpected_tensor_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(name, monkeypatch)
    layer = next(key for key in source.read.tensors if "mlp.down_proj" in key or "mlp." in key)
    extra = layer.partition("mlp.")[0] + "mlp.extra_gate.weight"
    with pytest.raises(CheckpointRefused, match="extra_gate"):
        source.translate(tensors={**source.read.tensors, extra: mx.zeros((2, 2))})
    with pytest.raises(CheckpointRefused, match="no name for a tensor"):
        source.translate(tensors={**source.read.tensors, "mtp.a\nb": mx.zeros((2, 2))})


KEYS = [
    "rope_scaling",
    "rope_parameters",
    "rope_theta",
    "partial_rotary_factor",
    "sliding_window",
    "layer_types",
    "is_causal",
    "head_dim",
    "n_group",
    "max_position_embeddings",
    "draft_vocab_size",
    "sample_from_anchor",
    "target_layer_ids",
    "eagle_config",
    "dflash_config",
    "text_config",
    "transformer_layer_config",
]
STRANGE: list[Any] = [
    None,
    "x",
    -1,
    0,
    1.5,
    True,
    [],
    {},
    2**31,
    [1, "a"],
    {"rope_theta": "x"},
    {"partial_rotary_factor": "half"},
    {"rope_type": "linear", "factor": 0},
    {"rope_type": "yarn", "factor": "x"},
    {"rope_type": ["a"]},
]


def paths(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths(item, (*path, key))
    if path:
        yield path


@pytest.mark.parametrize(
    "name", ["tiny-dflash-zlab", "dspark-speculators", "tiny-eagle3-angelspec", "mtp-qwen35-native"]
)
def test_strange_settings_never_crash(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(name, monkeypatch)
    for path in {*paths(source.read.config), *((key,) for key in KEYS)}:
        for value in STRANGE:
            config = copy.deepcopy(source.read.config)
            part = config
            for key in path[:-1]:
                part = part[key]
            part[path[-1]] = value
            try:
                converted = source.translate(config, target=source.facts)
            except LocalspecError:
                continue
            saved = json.loads(json.dumps(converted.config.to_json()))
            assert DrafterConfig.from_json(saved) == converted.config


def changed(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**config, **changes}


def test_names_of_tensors_beat_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source("tiny-eagle3-angelspec", monkeypatch)
    config = changed(source.read.config, architectures=["DFlashDraftModel"], num_hidden_layers=36)
    assert source.translate(config).config == source.translate().config
    config = changed(source.read.config, head_dim=8)
    converted = source.translate(config)
    assert converted.config.head_dim == 12
    assert any("head_dim is 8" in warning for warning in converted.report.warnings)


def test_the_size_of_a_draft_vocabulary_is_that_of_its_map(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source("eagle3-speculators", monkeypatch)
    config = changed(source.read.config, draft_vocab_size=None)
    assert source.translate(config).config.draft_vocab_size == 73


def test_an_appended_last_layer_is_no_tap(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source("dspark-speculators", monkeypatch)
    config = changed(source.read.config, aux_hidden_state_layer_ids=[2, 6, 10, 14, 17])
    assert source.translate(config, target=source.facts).report.tap_layers == (1, 5, 9, 13)
    converted = source.translate(config)
    assert converted.report.tap_layers == (1, 5, 9, 13)
    assert any("17" in warning for warning in converted.report.warnings)


def test_a_target_with_other_layers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dflash-zlab", "dspark-angelspec", "eagle3-deepspec", "mtp-qwen3-served"):
        source = Source(name, monkeypatch)
        facts = source.facts
        with pytest.raises(DrafterMismatch, match="layers"):
            source.translate(target=TargetFacts(facts.hidden_size, facts.vocab_size, 80))


def test_a_bias_that_is_announced_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source("mtp-angelspec-moe", monkeypatch)
    unbiased = {key: array for key, array in source.read.tensors.items() if "bias" not in key}
    with pytest.raises(CheckpointRefused, match="expert_bias"):
        source.translate(tensors=unbiased)
    config = changed(source.read.config, moe_router_enable_expert_bias=False)
    mixture = source.translate(config, unbiased).config.chain.mixture  # type: ignore[union-attr]
    assert mixture is not None
    assert (mixture.router, mixture.selection_bias) == ("sigmoid", False)


@pytest.mark.parametrize("name", ["mtp-qwen35-native", "mtp-qwen3next-native"])
def test_speculators_mtp_is_the_native_one_by_other_names(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(name, monkeypatch)
    native = source.translate(target=source.facts)
    tensors = {}
    for key, array in source.read.tensors.items():
        own = key.removeprefix("mtp.").removeprefix("layers.0.")
        for theirs, its in (
            ("pre_fc_norm_embedding.", "token_layernorm."),
            ("pre_fc_norm_hidden.", "hidden_layernorm."),
            ("fc.", "input_proj."),
            ("norm.", "final_layernorm."),
        ):
            own = its + own.removeprefix(theirs) if own.startswith(theirs) else own
        tensors[f"mtp_layers.0.{own}"] = array
    config = {
        "architectures": ["MTPDraftModel"],
        "speculators_model_type": "mtp",
        "transformer_layer_config": source.read.config.get("text_config", source.read.config),
    }
    converted = source.translate(config, tensors, target=source.facts)
    assert converted.config == native.config
    assert converted.tensors.keys() == native.tensors.keys()
    for key, array in native.tensors.items():
        assert mx.array_equal(converted.tensors[key], array)


# Folders of training runs


def test_a_best_checkpoint_that_is_gone_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "best_checkpointed_iteration.txt").write_text("300")
    shutil.copytree(GOLDEN / "tiny-dflash-zlab", tmp_path / "iter_0000200")
    with pytest.raises(CheckpointRefused, match="iter_0000300"):
        convert(tmp_path, tmp_path / "out")
    (tmp_path / "best_checkpointed_iteration.txt").write_text("200\n")
    assert convert(tmp_path, tmp_path / "out").architecture == "dflash"
    (tmp_path / "best_checkpointed_iteration.txt").write_text("../..")
    with pytest.raises(CheckpointRefused, match="number of an iteration"):
        convert(tmp_path, tmp_path / "other")


def test_a_checkpoint_for_training_is_sent_to_be_exported(tmp_path: Path) -> None:
    (tmp_path / "iter_0000200" / "model").mkdir(parents=True)
    (tmp_path / "iter_0000200" / "model" / ".metadata").write_bytes(b"\x80\x04.")
    (tmp_path / "best_checkpointed_iteration.txt").write_text("200")
    for source in (tmp_path, tmp_path / "iter_0000200", tmp_path / "iter_0000200" / "model"):
        with pytest.raises(CheckpointRefused, match="convert_to_hf"):
            convert(source, tmp_path / "out")


# The command


def test_a_target_is_known_by_its_config_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {"hidden_size": 16, "vocab_size": 41, "num_hidden_layers": 10}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **facts}))
    source, target = str(GOLDEN / "tiny-dflash-zlab"), str(tmp_path)
    out = ["-o", str(tmp_path / "out"), "--target", target]
    assert run(["convert", source, *out]) == 0
    assert load.load_config(tmp_path / "out").target_layers == 10
    (tmp_path / "config.json").write_text(json.dumps({**facts, "hidden_size": 32}))
    assert run(["convert", source, "-o", str(tmp_path / "two"), "--target", target]) == 1
    assert "hidden_size is 16" in capsys.readouterr().err
    assert not (tmp_path / "two").exists()
