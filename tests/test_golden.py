"""Golden cases: what the upstream PyTorch code computes, through the public converter and `observe`
and `propose`; and inputs that must be refused. Also those in the folder LOCALSPEC_GOLDEN names."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
from golden_cases import ROUNDS, GoldenCase, case_folders, run_case

from localspec.converters.convert import convert
from localspec.converters.foreign import TargetFacts
from localspec.errors import LocalspecError
from localspec.models import load


def facts_of(case: GoldenCase) -> TargetFacts:
    target = case.target
    return TargetFacts(target.hidden_size, target.vocab_size, case.facts["target_layers"])


@pytest.mark.parametrize("folder", case_folders(), ids=lambda folder: folder.name)
def test_drafts_are_upstreams(folder: Path, tmp_path: Path) -> None:
    case = GoldenCase.read(folder)
    report = convert(folder, tmp_path / "drafter", target=facts_of(case))
    assert report.architecture == case.facts["architecture"]
    assert report.layout == case.facts["layout"]
    assert list(report.tap_layers) == case.facts.get("tap_layers", [])
    drafter = load.load(tmp_path / "drafter")
    drafter.bind(case.target)
    differences = run_case(case, drafter)
    tolerance = case.facts["tolerance"]
    for name in ROUNDS:
        assert not differences[name].tokens, name
        assert differences[name].logits <= tolerance, name
        assert differences[name].confidence <= tolerance, name


@pytest.mark.parametrize("folder", case_folders("bad"), ids=lambda folder: folder.name)
def test_bad_inputs_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = json.loads((folder / "case.json").read_text())
    target = None
    if (folder / "target.safetensors").exists():
        stub = GoldenCase(folder, {"target_layers": facts.get("target_layers")}, {}).target
        target = TargetFacts(stub.hidden_size, stub.vocab_size, facts.get("target_layers"))
    monkeypatch.chdir(tmp_path)
    before = sorted(path.name for path in folder.iterdir())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LocalspecError) as refusal:
        convert(folder, tmp_path / "drafter", target=target)
    assert any(name in str(refusal.value) for name in facts["names"]), str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.iterdir()), "a refusal must write nothing and run nothing"
    assert sorted(path.name for path in folder.iterdir()) == before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 500_000, "kilobytes"
