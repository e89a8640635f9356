"""`localspec profile`: what it measures, and that generation uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from families import make_model
from random_drafters import random_drafter
from test_models_drafters import random_tensors
from typer.testing import CliRunner

import localspec
from localspec import profiles
from localspec.cli import app
from localspec.drafter_catalog import InstalledDrafter
from localspec.engine.costs import cost_table
from localspec.engine.drafters import measured_costs
from localspec.engine.loading import load_target
from localspec.engine.target import Target
from localspec.errors import UsageError
from localspec.lab.profile import measure
from localspec.models.load import save
from localspec.models.ngram import NgramDrafter

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast the machine is does not matter here."""
    monkeypatch.setattr("localspec.lab.profile._STREAM_BYTES", 2**20)
    monkeypatch.setattr("localspec.lab.profile._MATRIX", 64)
    monkeypatch.setattr("localspec.lab.profile._MOST_TURNS", 3)


@pytest.mark.parametrize("architecture", ["dspark", "mtp", "ngram"])
def test_every_width_and_depth_is_measured(architecture: str) -> None:
    target = Target(make_model("llama", num_hidden_layers=2, vocab_size=16), context_length=2000)
    drafter = (
        NgramDrafter(4) if architecture == "ngram" else random_drafter(architecture, target, seed=1)
    )
    notes: list[str] = []
    profile = measure(target, drafter, TEXT, budget_s=0.1, depths=[8, 40], say=notes.append)
    assert "this takes about" in notes[0]
    assert profile.widths == tuple(range(drafter.max_width + 1))
    assert [each.depth for each in profile.depths] == [8, 40]
    for each in profile.depths:
        assert len(each.draft) == len(each.verify) == len(profile.widths)
        assert each.draft[0].median < each.plain.median
        assert all(timing.median > 0 for timing in each.verify)
        assert each.plain_share > 0
        assert each.plain_bound > 0
    assert set(profile.noise) == {1, min(4, drafter.max_width), drafter.max_width}
    for noise in profile.noise.values():
        assert noise.positions >= 32
        assert noise.largest < 1e-3
        assert noise.agreement > 0.9
    # How far passes are off is the target's; the next drafter need not be told anew.
    again = measure(target, drafter, TEXT, budget_s=0.1, depths=[8], known=profile.noise)
    assert again.noise == profile.noise
    narrow = {1: profile.noise[1]}
    assert len(measure(target, drafter, TEXT, budget_s=0.1, depths=[8], known=narrow).noise) > 1
    table = cost_table(json.loads(json.dumps(profile.as_dict())))
    assert table.verify_at(2, 8) == pytest.approx(profile.depths[0].verify[2].median)
    low, high = (each.plain.median for each in profile.depths)
    assert min(low, high) <= table.plain_at(20) <= max(low, high)


def test_the_command_keeps_what_it_measured_and_generation_uses_it(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    options = ["profile", "-m", str(tiny), "-d", "ngram", "--depth", "8", "--seconds", "1"]
    done = CliRunner().invoke(app, [*options, "--positions", "40", "--json"])
    assert done.exit_code == 0, done.output
    (report,) = json.loads(done.stdout)["profiles"]
    assert report["noise"]["1"]["positions"] == 40
    model = localspec.load(str(tiny), drafter="ngram")
    kept = profiles.read(model.profile_key)
    assert kept is not None
    assert str(model.profile_key.path) == report["kept_in"]
    assert model._experience.costs.table == cost_table(kept)
    other = localspec.load(str(tiny), drafter="none")
    assert profiles.read(other.profile_key) is None

    done = CliRunner().invoke(app, options)
    assert done.exit_code == 0
    assert "context of 8 tokens" in done.stdout
    assert "of the memory's speed" in done.stdout
    assert "█" in done.stdout


def test_auto_profiles_what_it_chooses_among_and_uses_it(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    made: Any = random_drafter("dflash", load_target(tiny), seed=1)
    folder = tmp_path / "made"
    folder.mkdir()
    save(made.config, random_tensors(made.config, 1), folder)
    found = [InstalledDrafter(str(folder), "dflash", folder)]
    monkeypatch.setattr("localspec.engine.drafters.bundled_drafters", lambda mark: found)
    options = ["profile", "-m", str(tiny), "--depth", "8", "--seconds", "1", "--json"]
    done = CliRunner().invoke(app, options)
    assert done.exit_code == 0, done.output
    reports: list[dict[str, Any]] = json.loads(done.stdout)["profiles"]
    assert [report["drafter"] for report in reports] == [str(folder), "ngram"]
    auto: Any = localspec.load(str(tiny), drafter="auto")._bound
    for report in reports:
        assert auto.experience(report["drafter"]).costs.table == cost_table(report)


def test_a_broken_file_is_no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    key = profiles.ProfileKey("chip", "cpu", "1", "target", "drafter")
    profiles.write(key, {"widths": []})
    assert profiles.read(key) == {"widths": []}
    key.path.write_text("{")
    assert profiles.read(key) is None
    good = {"depth": 1, "plain": {"median": 1.0}}
    good |= {part: [{"median": 1.0}] * 2 for part in ("draft", "verify")}
    profiles.write(key, {"widths": [0, 1], "depths": [good]})
    assert measured_costs(key) is not None
    for broken in (
        {},
        {"widths": 3, "depths": []},
        {"widths": [0, 1], "depths": []},
        {"widths": [0, 1, 2], "depths": [good]},
        {"widths": [0, 1], "depths": [good | {"plain": {"median": float("nan")}}]},
        {"widths": [0, 1], "depths": [good | {"plain": "x"}]},
    ):
        profiles.write(key, broken)
        notes: list[str] = []
        assert measured_costs(key, notes.append) is None
        assert [str(key.path) in note for note in notes] == [True]
    key.path.unlink()
    assert measured_costs(key, notes.append) is None
    assert len(notes) == 1


def test_a_depth_beyond_the_context_is_refused() -> None:
    target = Target(make_model("llama", num_hidden_layers=2, vocab_size=16), context_length=2000)
    with pytest.raises(UsageError, match="2000 tokens and the rounds there do not fit"):
        measure(target, NgramDrafter(4), TEXT, budget_s=0.1, depths=[8, 2000])
