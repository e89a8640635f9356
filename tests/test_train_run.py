"""`localspec train` as a user runs it, on a tiny random target with a tokenizer and a chat template."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from many_runs import run_many
from tables import next_law
from test_lossless import p_value
from typer.testing import CliRunner

from localspec.cli import app
from localspec.engine.drafters import make_drafter
from localspec.engine.generation import Generation
from localspec.engine.loading import load_target
from localspec.engine.request import Request
from localspec.engine.sampling import SamplingParams
from localspec.engine.target import Target
from localspec.errors import (
    CheckpointRefused,
    DrafterMismatch,
    ModelNotFound,
    TrainingError,
    UsageError,
)
from localspec.models.drafter import Drafter
from localspec.models.load import load_config
from localspec.provenance import CHECKPOINTS, fingerprint
from localspec.train.checkpoints import Checkpoints
from localspec.train.corpus import Corpus
from localspec.train.material import gather
from localspec.train.origin import read_origin
from localspec.train.plan import Plan
from localspec.train.rollouts import RolloutWriter
from localspec.train.run import make_trainer, train
from localspec.train.start import Shape, new_config, new_drafter
from localspec.train.trainer import Progress, Settings


def run(*arguments: str) -> Any:
    done = CliRunner().invoke(app, ["train", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture(scope="module")
def trained(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "drafter"
    with pytest.MonkeyPatch.context() as patch:
        # Of its own: another worker may train too, and a corpus has one writer.
        patch.setenv("LOCALSPEC_CACHE", str(folder.parent / "cache"))
        done = run("dspark", "-m", str(tiny), "-o", str(folder), "--minutes", "1", "--json")
    assert json.loads(done.stdout) == json.loads((folder / "training.json").read_text())
    return folder


def bound(tiny: Path, trained: Path) -> tuple[Target, Drafter]:
    target = load_target(tiny)
    _, drafter, _ = make_drafter(str(trained), target, folder=tiny)
    assert drafter is not None
    return target, drafter


def test_greedy_text_is_the_same_with_the_trained_drafter(tiny: Path, trained: Path) -> None:
    target, drafter = bound(tiny, trained)
    accepted = 0
    for start in range(10, 50, 4):
        texts = []
        for chosen in (None, drafter):
            run = Generation(target, chosen, Request([1, start, start + 1, 2], 40, width=4))
            for _ in run.run():
                pass
            texts.append(run.tokens)
        assert texts[0] == texts[1]
        accepted += run.stats.accepted
    assert accepted > 5


def test_sampled_text_has_the_targets_law_with_the_trained_drafter(
    tiny: Path, trained: Path
) -> None:
    target, drafter = bound(tiny, trained)
    params = SamplingParams(temperature=0.9, top_k=5)
    prompt: list[int] = []

    def request(seed: int) -> Request:
        return Request(prompt, 2, params, seed=seed, width=1)

    # After some prompts drafter and target agree on nothing, and those would test little.
    for start in range(10, 100):
        prompt = [1, start, start + 1, 2]
        if 0.1 < run_many(target, drafter, request, 200)[1] < 0.9:
            break
    law = np.zeros((target.vocab_size,) * 2)
    rows = target.forward(mx.array([prompt]), target.new_cache(), rows=1).logits
    first = next_law(np.array(rows)[0, -1].astype(np.float64), prompt, [], params)
    for token in np.flatnonzero(first):
        said = mx.array([[*prompt, int(token)]])
        rows = target.forward(said, target.new_cache(), rows=1).logits
        after = next_law(np.array(rows)[0, -1].astype(np.float64), prompt, [int(token)], params)
        law[token] = first[token] * after

    tokens, share_accepted = run_many(target, drafter, request, 10_000)
    assert 0.05 < share_accepted < 0.95
    seen = np.zeros_like(law)
    np.add.at(seen, (tokens[:, 0], tokens[:, 1]), 1)
    assert p_value(seen, law) > 1e-3


def test_another_target_is_warned_about(tiny: Path, trained: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 256}))
    notes: list[str] = []
    make_drafter(str(trained), load_target(tiny), folder=tiny, notify=notes.append)
    assert notes == []
    make_drafter(str(trained), load_target(other), folder=other, notify=notes.append)
    assert any("trained for another target" in note for note in notes)


def test_wrong_usage_is_told_before_anything_is_loaded(trained: Path, tmp_path: Path) -> None:
    missing = ["-m", "/nowhere"]
    for arguments, words in (
        (["dspark", *missing, "-o", str(trained)], "finished drafter"),
        (["dspark", *missing, "-o", str(tmp_path / "new"), "--resume"], "no run to go on with"),
        (["dspark", *missing, "--minutes", "1", "--tokens", "5"], "either minutes or tokens"),
        (["dspark", *missing, "--minutes", "-1"], "minutes must be more than 0"),
        (["dspark", *missing, "--tokens", "0"], "tokens must be more than 0"),
        (["dspark", *missing, "--width", "0"], "width must be more than 0"),
        (["eagle3", *missing, "--layers", "2"], "one layer"),
        (["dspark", *missing, "--data", "/nowhere.jsonl"], "/nowhere.jsonl"),
    ):
        with pytest.raises(UsageError, match=words):
            run(*arguments)


def test_a_minute_of_training_makes_a_better_drafter(trained: Path) -> None:
    card = json.loads((trained / "training.json").read_text())
    assert card["curve"][0][0] == 0
    assert card["accepted_length"] > card["curve"][0][1] + 0.01
    assert card["held_out_prompts"] > 0
    assert f"{card['accepted_length']:.2f}" in (trained / "README.md").read_text()


def test_a_run_goes_on_when_another_one_has_made_the_corpus_longer(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    plan = Plan("dflash", str(tiny), tmp_path / "first", tokens=600)
    steps: list[int] = []

    def interrupt(progress: Progress) -> None:
        steps.append(progress.step)
        if progress.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(plan, report=interrupt)
    (folder,) = (tmp_path / "cache" / "corpora").iterdir()
    begun_with = Corpus(folder, fingerprint(tiny)).num_answered
    with pytest.raises(KeyboardInterrupt):
        train(replace(plan, output=tmp_path / "second", tokens=begun_with + 1), report=interrupt)
    assert Corpus(folder, fingerprint(tiny)).num_answered > begun_with
    steps.clear()
    card = train(replace(plan, resume=True), report=lambda progress: steps.append(progress.step))
    assert card.corpus_tokens == begun_with
    assert steps[0] == 3


def test_the_best_checkpoint_is_the_one_that_the_caller_prefers(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    plan = Plan("dflash", str(tiny), tmp_path / "new", tokens=300)
    material = gather(plan, time.monotonic(), lambda note: None, lambda answered: None)
    vocabulary = material.vocabulary("dflash")
    config = new_config(
        "dflash",
        material.target,
        material.settings,
        Shape(1, 2),
        mask_token_id=material.mask_token_id,
        draft_vocab_size=vocabulary.ids.size,
    )
    scores = iter([3.0, 9.0, 5.0, 4.0])
    settings = Settings(tokens=600, evaluations=3)
    checkpoints = tmp_path / "checkpoints"
    trainer = make_trainer(
        new_drafter(config, material.target, vocabulary, 0),
        material,
        vocabulary,
        lambda drafter: next(scores),
        checkpoints,
        settings,
    )
    trainer.run()
    assert 9.0 in [score for _, score in trainer.curve]
    assert Checkpoints(checkpoints).best_score == 9.0


def test_a_trained_drafter_is_gone_on_from(
    tiny: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    done = run(
        *("dspark", "-m", str(tiny), "-o", str(tmp_path / "on"), "--from", str(trained)),
        *("--tokens", "300", "--json"),
    )
    card = json.loads(done.stdout)
    before = json.loads((trained / "training.json").read_text())
    assert f"--from {trained.name} " in card["command"]
    assert card["width"] == before["width"]
    assert card["origin"] == {"command": before["command"], "tokens": before["tokens"]}
    assert before["command"] in (tmp_path / "on" / "README.md").read_text()
    assert load_config(tmp_path / "on") == load_config(trained)


def test_what_is_gone_on_from_drafts_as_it_was_stored(tiny: Path, trained: Path) -> None:
    target, stored = bound(tiny, trained)
    origin = read_origin(str(trained), "dspark", target).drafter(target)
    runs = []
    for drafter in (stored, origin):
        accepted = []
        for start in range(10, 50, 4):
            run = Generation(target, drafter, Request([1, start, start + 1, 2], 40, width=4))
            for _ in run.run():
                pass
            accepted.append((run.stats.rounds, run.stats.accepted))
        runs.append(accepted)
    assert runs[0] == runs[1]
    assert sum(accepted for _, accepted in runs[0]) > 5


def test_a_reduced_head_keeps_its_tokens_when_gone_on_from(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("localspec.train.material.REDUCED_VOCABULARY", 40)
    first, second = tmp_path / "first", tmp_path / "second"
    train(Plan("eagle3", str(tiny), first, tokens=300))
    monkeypatch.setattr("localspec.train.material.REDUCED_VOCABULARY", 50)
    train(Plan("eagle3", str(tiny), second, tokens=3000, origin=str(first)))
    before, after = (mx.load(str(folder / "model.safetensors")) for folder in (first, second))
    assert after["d2t"].shape == (40,)
    assert before["d2t"].tolist() == after["d2t"].tolist()
    # Not the best checkpoint, which may be the one before the first step.
    latest = Checkpoints(second / CHECKPOINTS).latest()
    assert latest is not None
    head = latest[0]["drafter.lm_head.weight"]
    assert head.shape[0] == 40
    assert not mx.allclose(head, before["lm_head.weight"].astype(mx.float32), atol=1e-3)


def test_what_cannot_be_gone_on_from_is_told_before_text_is_written(
    tiny: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    foreign = tmp_path / "foreign"
    shutil.copytree(trained, foreign)
    (foreign / "training.json").unlink()
    rest = ["-m", str(tiny), "-o", str(tmp_path / "new"), "--tokens", "300", "--from"]
    unfinished = tmp_path / "unfinished"
    (unfinished / "checkpoints").mkdir(parents=True)
    broken = tmp_path / "broken"
    shutil.copytree(trained, broken)
    (broken / "training.json").write_text("{}")
    for architecture, origin, words, error in (
        ("dspark", str(broken), "is broken", CheckpointRefused),
        ("dspark", str(foreign), "not trained by localspec", UsageError),
        ("dflash", str(trained), "of the kind dspark, not dflash", UsageError),
        ("dspark", "ngram", "was not trained", UsageError),
        ("dspark", str(unfinished), "has not ended", ModelNotFound),
        ("dspark", "nothing-of-this-name", "no drafter is called", ModelNotFound),
        ("eagle3", "eagle3", "hidden_size is 576", DrafterMismatch),
    ):
        with pytest.raises(error, match=words):
            run(architecture, *rest, origin)
    with pytest.raises(UsageError, match="leave them out"):
        run("dspark", *rest, str(trained), "--width", "2")
    assert not (tmp_path / "cache" / "corpora").exists()
    assert not (tmp_path / "new").exists()


def test_cards_keep_hub_ids_whole_and_tell_no_folders(tmp_path: Path) -> None:
    hub = Plan("mtp", "org/name-4bit", tmp_path / "a", tokens=5)
    assert hub.target == "org/name-4bit"
    assert "-m org/name-4bit " in f"{hub.command} "
    folder = Plan("mtp", str(tmp_path), tmp_path / "a", data=("/data/x.jsonl",), tokens=5)
    assert folder.target == tmp_path.name
    assert "/" not in folder.command


def test_what_is_there_is_not_overwritten(tiny: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "README.md").write_text("precious")
    with pytest.raises(UsageError, match="holds other files"):
        run("mtp", "-m", str(tiny), "-o", str(notes), "--tokens", "300")
    with pytest.raises(UsageError, match="is a file"):
        run("mtp", "-m", str(tiny), "-o", str(notes / "README.md"), "--tokens", "300")
    assert (notes / "README.md").read_text() == "precious"


def test_a_folder_that_cannot_be_made_is_told_before_text_is_written(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    (tmp_path / "file").touch()
    plan = Plan("dflash", str(tiny), tmp_path / "file" / "drafter", tokens=300)
    with pytest.raises(TrainingError, match="drafter/checkpoints cannot be written"):
        train(plan)
    assert not (tmp_path / "cache").exists()


def test_a_run_that_was_interrupted_while_text_was_written_goes_on(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    output = tmp_path / "new"

    def interrupt(*_: object, **options: object) -> None:
        raise KeyboardInterrupt

    common = ("dflash", "-m", str(tiny), "-o", str(output), "--tokens", "300")
    with monkeypatch.context() as patch:
        patch.setattr(RolloutWriter, "write", interrupt)
        done = CliRunner().invoke(app, ["train", *common])
    assert "--resume goes on" in done.stderr
    with pytest.raises(UsageError, match="give --resume to go on"):
        run(*common)
    with pytest.raises(UsageError, match=r"begun by `localspec train dflash .* --tokens 300`"):
        run(*common, "--width", "3", "--resume")
    with pytest.raises(UsageError, match="begun by"):
        run(*common[:-2], "--resume")
    assert run(*common, "--resume").exit_code == 0
    assert (output / "training.json").is_file()


def test_text_beyond_what_was_asked_for_is_left_out(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))

    def material(tokens: int) -> int:
        plan = Plan("dflash", str(tiny), tmp_path / str(tokens), tokens=tokens)
        found = gather(plan, time.monotonic(), lambda note: None, lambda answered: None)
        return found.corpus.num_answered

    first = material(300)
    assert material(first + 1) > first
    assert material(300) == first


def test_a_run_whose_text_has_gone_does_not_go_on_with_other_text(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    plan = Plan("dflash", str(tiny), tmp_path / "first", tokens=300)

    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(plan, report=interrupt)
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(TrainingError, match="the text that this run began with is not in"):
        train(replace(plan, resume=True))
