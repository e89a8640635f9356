"""Conversion as a whole: the same bytes twice, all or nothing, quantised, options, the command."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from golden_cases import GoldenCase, case_folders, run_case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localspec.cli import run
from localspec.converters.convert import convert
from localspec.converters.foreign import Options, TargetFacts
from localspec.converters.public import drafters_for, public_drafters
from localspec.drafter_catalog import is_converted, resolve_drafter
from localspec.errors import CheckpointRefused, LocalspecError, ModelNotFound, UsageError
from localspec.models import load

GOLDEN = Path(__file__).parent / "golden"
CASES = ["dflare-angelspec", "dspark-speculators", "dfly-angelspec-bin", "eagle3-deepspec"]


def facts(name: str) -> TargetFacts:
    case = GoldenCase.read(GOLDEN / name)
    return TargetFacts(case.target.hidden_size, case.target.vocab_size, case.facts["target_layers"])


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("bits", [None, 8])
def test_converting_twice_gives_the_same_bytes(name: str, bits: int | None, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        convert(GOLDEN / name, tmp_path / folder, target=facts(name), bits=bits)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert set(digests(tmp_path / "one")) == {"config.json", "model.safetensors", "README.md"}


@pytest.mark.parametrize("name", CASES)
def test_eight_bits_draft_nearly_the_same(name: str, tmp_path: Path) -> None:
    case = GoldenCase.read(GOLDEN / name)
    convert(GOLDEN / name, tmp_path / "drafter", target=facts(name), bits=8)
    drafter = load.load(tmp_path / "drafter")
    assert drafter.config.quantization is not None
    drafter.bind(case.target)
    difference = run_case(case, drafter)["round1"]
    assert difference.logits < 0.5


def test_a_killed_conversion_leaves_nothing_that_loads(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from localspec.converters import convert\n"
        "from localspec.models import load\n"
        "save = load.save\n"
        "def slow(*arguments):\n"
        "    save(*arguments)\n"
        "    print('saved', flush=True)\n"
        "    time.sleep(60)\n"
        "load.save = slow\n"
        f"convert.convert(Path({str(GOLDEN / 'tiny-dflash-zlab')!r}), Path(sys.argv[1]))\n"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path / "drafter")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as converting:
        assert converting.stdout is not None
        assert converting.stdout.readline() == b"saved\n"
        converting.kill()
    assert not (tmp_path / "drafter").exists()
    time.sleep(0.1)
    convert(GOLDEN / "tiny-dflash-zlab", tmp_path / "drafter")
    load.load(tmp_path / "drafter")
    # What was left is cleared away too.
    assert [path.name for path in tmp_path.iterdir()] == ["drafter"]


def test_a_folder_that_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "drafter").mkdir()
    with pytest.raises(CheckpointRefused, match="drafter is there already"):
        convert(GOLDEN / "tiny-dflash-zlab", tmp_path / "drafter")
    assert not list((tmp_path / "drafter").iterdir())


def edited(source: str, folder: Path, **changes: Any) -> Path:
    """A copy of a case's checkpoint with keys of config.json changed; None removes one."""
    folder.mkdir()
    for path in (GOLDEN / source).iterdir():
        if path.name in ("model.safetensors", "pytorch_model.bin"):
            shutil.copy(path, folder)
    config = json.loads((GOLDEN / source / "config.json").read_text())
    for key, value in changes.items():
        config.pop(key, None)
        if value is not None:
            config[key] = value
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def layout_of(folder: Path, out: Path, **options: Any) -> tuple[str, bool]:
    report = convert(folder, out, options=Options(**options))
    return report.layout, report.layout_declared


def test_layouts_are_declared_or_assumed_with_a_warning(tmp_path: Path) -> None:
    plain = GOLDEN / "tiny-dflash-zlab"
    report = convert(plain, tmp_path / "a")
    assert (report.layout, report.layout_declared) == ("anchor_slot_unused", False)
    assert any("layout" in warning for warning in report.warnings)
    said = edited("tiny-dflash-zlab", tmp_path / "said", sample_from_anchor=True)
    assert layout_of(said, tmp_path / "b") == ("every_slot_predicts", True)
    older = edited("tiny-dflash-zlab", tmp_path / "older", dspark_bonus_anchor=True)
    assert layout_of(older, tmp_path / "c") == ("anchor_slot_unused", True)
    forced = layout_of(plain, tmp_path / "d", layout="every_slot_predicts")
    assert forced == ("every_slot_predicts", True)


def test_taps_can_be_read_as_inputs(tmp_path: Path) -> None:
    report = convert(
        GOLDEN / "tiny-dflash-zlab", tmp_path / "drafter", options=Options(taps="inputs")
    )
    assert report.tap_layers == (0, 3, 6)


def test_sliding_layers_are_causal_in_the_block_unless_said(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"]
    folder = edited("tiny-dflash-zlab", tmp_path / "w", layer_types=kinds, sliding_window=8)
    convert(folder, tmp_path / "drafter")
    block = load.load_config(tmp_path / "drafter").block
    assert block is not None
    first, second = block.layers
    assert (first.causal, first.window, second.causal, second.window) == (True, 8, False, None)
    no_window = edited("tiny-dflash-zlab", tmp_path / "n", layer_types=kinds)
    with pytest.raises(CheckpointRefused, match="sliding_window"):
        convert(no_window, tmp_path / "other")


def test_conventions_of_eagle_3(tmp_path: Path) -> None:
    def chain(folder: Path, out: str, **options: Any) -> Any:
        convert(folder, tmp_path / out, options=Options(**options))
        return load.load_config(tmp_path / out)

    unsaid = edited("eagle3-speculators", tmp_path / "u", norm_before_residual=None)
    assert chain(unsaid, "a").chain.norm_before_residual is True
    assert chain(unsaid, "b", norm_before_residual=False).chain.norm_before_residual is False
    assert chain(unsaid, "c", taps="outputs").tap_layers == (2, 8, 13)
    scaled = edited(
        "tiny-eagle3-angelspec",
        tmp_path / "s",
        rope_theta=500000.0,
        rope_scaling={"type": "linear", "factor": 2.0},
    )
    assert chain(scaled, "d").rope.theta == 10000.0
    no_target = GOLDEN / "tiny-eagle3-safeailab-bin"
    with pytest.raises(CheckpointRefused, match="give the target"):
        convert(no_target, tmp_path / "e")


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"architectures": ["Gemma4DSparkModel"]}, "Gemma4DSparkModel"),
        ({"architectures": ["Qwen3TreeDSparkDFlareModel"]}, "Qwen3TreeDSparkDFlareModel"),
        ({"architectures": ["NobodyKnows"]}, "NobodyKnows"),
        ({"architectures": []}, "architectures"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"block_size": 1}, "block_size"),
        ({"layer_types": ["lightning", "lightning"]}, "layer_types"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"hidden_act": "gelu"}, "hidden_act must be silu"),
        ({"hidden_size": -32}, "hidden_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": "two"}, "num_key_value_heads"),
        ({"rope_scaling": "x"}, "rope_scaling must be an object"),
        (
            {"dflash_config": {"mask_token_id": 39, "target_layer_ids": [1, 1, 7]}},
            "target_layer_ids",
        ),
        ({"dflash_config": {"mask_token_id": 39, "target_layer_ids": "all"}}, "target_layer_ids"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(
    changes: dict[str, Any], names: str, tmp_path: Path
) -> None:
    folder = edited("tiny-dflash-zlab", tmp_path / "bad", **changes)
    with pytest.raises(CheckpointRefused, match=names):
        convert(folder, tmp_path / "drafter")
    assert not (tmp_path / "drafter").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 64}, "hidden_size is 64"),
        ({"num_key_value_heads": 4}, "num_key_value_heads is 4"),
        ({"attention_bias": True}, "there are no biases"),
    ],
)
def test_settings_that_the_tensors_contradict_are_told(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    said = edited("tiny-dflash-zlab", tmp_path / "said", **changes)
    report = convert(said, tmp_path / "drafter")
    assert any(words in warning for warning in report.warnings)
    as_it_is = convert(GOLDEN / "tiny-dflash-zlab", tmp_path / "as it is")
    assert not any(words in warning for warning in as_it_is.warnings)
    assert load.load_config(tmp_path / "drafter") == load.load_config(tmp_path / "as it is")


def test_unknown_dialects_are_refused() -> None:
    with pytest.raises(UsageError, match="z-lab"):
        convert(GOLDEN / "tiny-dflash-zlab", Path("x"), options=Options(dialect="klingon"))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(-5, 200), max_size=4),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_config_is_converted_or_refused_cleanly(data: st.DataObject, tmp_path: Path) -> None:
    case = data.draw(
        st.sampled_from(["tiny-dflash-zlab", "tiny-eagle3-angelspec", "mtp-glm4-native"])
    )
    config = json.loads((GOLDEN / case / "config.json").read_text())
    keys = data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3))
    work = tmp_path / "work"
    shutil.rmtree(work, ignore_errors=True)
    changes = {key: data.draw(VALUES) for key in keys}
    folder = edited(case, work, **changes)
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    refusal = ""
    try:
        convert(folder, tmp_path / "out", target=TargetFacts(16, 41, 10))
    except LocalspecError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert bool(refusal) != (tmp_path / "out").exists()


def test_names_lead_to_converted_folders_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    said: list[str] = []
    name = str(GOLDEN / "eagle3-deepspec")
    first = resolve_drafter(name, target=facts("eagle3-deepspec"), notify=said.append)
    again = resolve_drafter(name, target=facts("eagle3-deepspec"), notify=said.append)
    assert first == again
    assert is_converted(first)
    assert sum("once" in note for note in said) == 1
    assert resolve_drafter(str(first), target=facts("eagle3-deepspec")) == first
    with pytest.raises(ModelNotFound, match="nonesuch"):
        resolve_drafter("nonesuch", target=facts("eagle3-deepspec"))


def test_public_drafters_are_found_by_target() -> None:
    names = {drafter.name for drafter in drafters_for("mlx-community/Qwen3-8B-4bit")}
    assert "AngelSlim/Qwen3-8B-DFly-Block8" in names
    assert "z-lab/Qwen3-8B-DFlash-b16" in names
    assert not any("4b" in name.lower() for name in names)
    assert not drafters_for("Qwen/Qwen3-8B-Base")
    assert {drafter.architecture for drafter in public_drafters()} == {
        "eagle3",
        "mtp",
        "dflash",
        "dflare",
        "dspark",
        "dfly",
    }


def test_the_command_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = str(GOLDEN / "dspark-speculators"), str(tmp_path / "d")
    assert run(["convert", source, "-o", out, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["architecture"] == "dspark"
    assert report["tap_layers"] == [1, 5, 9, 13]
    assert report["layout_declared"] is True
    assert run(["convert", source, "-o", str(tmp_path / "e")]) == 0
    assert "every_slot_predicts (declared)" in capsys.readouterr().out
    assert run(["convert", source, "-o", out]) == 1
    assert run(["convert", source, "--bits", "5"]) == 2
    assert run(["convert", source, "--check"]) == 2
    assert run(["convert", source, "--layout", "sideways"]) == 2
    assert capsys.readouterr().err.count("\n") == 4


@pytest.mark.parametrize(
    ("source", "arguments", "sentence"),
    [
        ("dflash-zlab", ["--target-raw"], "for which target_normed means nothing"),
        ("dflash-zlab", ["--no-norm-before-residual"], "norm_before_residual means nothing"),
        ("dflash-zlab", ["--dialect", "hy3"], "which the dialect hy3 does not have"),
        ("eagle3-angelspec", ["--layout", "anchor_slot_unused"], "layout means nothing"),
        ("mtp-mimo-native", ["--taps", "inputs"], "taps means nothing"),
        ("mtp-mimo-native", ["--target-normed", "--target-raw"], "contradict each other"),
        ("dflash-zlab", ["--bits", "5"], "'--bits': '5' is not one of '4', '8'."),
    ],
)
def test_options_that_cannot_hold_are_refused(
    source: str,
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert run(["convert", str(GOLDEN / source), "-o", str(out), *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert not out.exists()


def test_sources_that_are_none_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def complaint(source: Path | str) -> str:
        assert run(["convert", str(source), "-o", str(tmp_path / "out")]) == 1
        return capsys.readouterr().err

    assert "'/no/such' does not exist" in complaint("/no/such")
    assert "'' does not exist" in complaint("")
    alone = tmp_path / "model.safetensors"
    shutil.copy(GOLDEN / "dflash-zlab" / alone.name, alone)
    said = complaint(alone)
    assert f"{alone}: expected config.json beside it" in said
    assert str(tmp_path / "config.json") in said
    convert(GOLDEN / "dflash-zlab", tmp_path / "converted")
    assert "needs no converting" in complaint(tmp_path / "converted")


def test_every_golden_case_is_converted_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in case_folders():
        # SafeAILab's files do not say their taps, which depend on the target.
        code = 1 if "safeailab" in folder.name else 0
        for bits in ("4", "8"):
            out = tmp_path / f"{folder.name}-{bits}"
            assert run(["convert", str(folder), "-o", str(out), "--bits", bits, "--json"]) == code
            said, error = capsys.readouterr()
            if code:
                assert "give the target (--target)" in error
                assert not out.exists()
            else:
                assert json.loads(said)["folder"] == str(out)
                assert load.load(out).config.quantization is not None


def test_weights_keep_their_type(tmp_path: Path) -> None:
    convert(GOLDEN / "tiny-dflash-zlab", tmp_path / "d")
    tensors = mx.load(str(tmp_path / "d" / "model.safetensors"))
    assert isinstance(tensors, dict)
    assert {array.dtype for array in tensors.values()} == {mx.float32}
