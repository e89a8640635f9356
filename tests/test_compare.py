"""`localspec compare`: figures, winners and noise on scripted runs; the page; the command."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from random_drafters import random_drafter
from typer.testing import CliRunner

import localspec
from localspec.cli import app
from localspec.engine.auto import Auto
from localspec.engine.costs import CostTable
from localspec.engine.machine import describe
from localspec.engine.memory import weights
from localspec.engine.metrics import Stats
from localspec.engine.width import Experience
from localspec.errors import UsageError
from localspec.lab.compare import (
    Comparison,
    Figures,
    Settings,
    compare,
    is_faster,
    predicted_seconds,
)
from localspec.lab.page import page
from localspec.lab.prompts import LabPrompt, bundled, read, spread
from localspec.measuring import ModelRunner
from localspec.model import load_usable
from localspec.text.kinds import kind_of

TABLE = CostTable((0,), (0, 4), ((0.0, 0.4),), ((1.0, 1.4),), (0.9,))


class Scripted:
    """Rounds of two drafts of which one stands; `speeds` by kind, with noise."""

    def __init__(self, speeds: dict[str, float], noise: float, log: list[str], name: str) -> None:
        self._speeds, self._noise, self._log, self._name = speeds, noise, log, name
        self._rng = np.random.default_rng(sum(map(ord, name)))
        self.costs = None if name == "none" else TABLE

    def run(self, prompt: LabPrompt, settings: Settings, seed: int, width: int | None) -> Stats:
        self._log.append(self._name)
        stats = Stats(prompt_tokens=10)
        for _ in range(settings.max_tokens // 2):
            if self._name == "none":
                stats.add_round(0, 0, 1, num_drafted=0, parked=False, draft_s=0.0, verify_s=0.0)
                stats.add_round(0, 0, 1, num_drafted=0, parked=False, draft_s=0.0, verify_s=0.0)
            else:
                stats.add_round(2, 1, 2, num_drafted=2, parked=False, draft_s=0.01, verify_s=0.05)
        speed = self._speeds[prompt.kind] * (1 + self._noise * self._rng.standard_normal())
        stats.decode_s = stats.generated_tokens / speed
        return stats

    @property
    def memory(self) -> int:
        return 1_000_000


def comparison(noise: float = 0.01, quick: float = 20.0) -> tuple[Comparison, list[str]]:
    log: list[str] = []
    prompts = [LabPrompt(f"p{n}", "code" if n % 2 else "chat") for n in range(12)]
    speeds = {
        "none": {"code": 10.0, "chat": 10.0},
        "quick": {"code": quick, "chat": 11.0},
        "quiet": {"code": 15.0, "chat": 11.0},
    }
    runners = {name: Scripted(each, noise, log, name) for name, each in speeds.items()}
    return compare(runners, prompts, Settings(0.0, 20)), log


def test_every_prompt_goes_through_every_drafter_in_turns() -> None:
    compared, log = comparison()
    assert compared.kinds == ["chat", "code", "overall"]
    runs = log[3:]
    assert len(runs) == 36
    assert all(sorted(runs[n : n + 3]) == ["none", "quick", "quiet"] for n in range(0, 36, 3))
    # None is always first.
    assert len({runs[n] for n in range(0, 36, 3)}) == 3


def test_figures_winners_and_noise() -> None:
    compared, _ = comparison()
    quick = compared.figures["code"]["quick"]
    assert quick.accepted_length == 2.0
    assert quick.acceptance == [1.0, 0.0]
    assert quick.speed == pytest.approx(20.0, rel=0.02)
    assert compared.winner("code").name == "quick"
    assert not compared.winner("code").within_noise
    assert compared.winner("chat").within_noise
    report = compared.as_dict()
    assert json.loads(json.dumps(report)) == report
    code = report["kinds"]["code"]["drafters"]["quick"]
    low, high = code["ratio_quartiles"]
    assert low < code["ratio"] < high
    assert code["draft_share"] == pytest.approx(0.01 * 10 / (20 / quick.speed), rel=0.01)
    assert code["verify_share"] == pytest.approx(5 * code["draft_share"])
    assert report["kinds"]["overall"]["drafters"]["none"]["ratio"] == 1.0
    # A round of two drafts takes 0.2 + 1.2 by the table.
    assert code["predicted_tokens_per_second"] == pytest.approx(2 / 1.4)


def test_much_noise_makes_no_winner() -> None:
    assert comparison(noise=0.2, quick=15.2)[0].winner("code").within_noise


@pytest.mark.parametrize("prompts", [2, 3, 7, 30])
def test_equal_drafters_are_seldom_called_faster(prompts: int) -> None:
    rng = np.random.default_rng(prompts)

    def figures() -> Figures:
        return Figures(speeds=list(10 * np.exp(0.2 * rng.standard_normal(prompts))))

    faster = sum(is_faster(figures(), figures()) for _ in range(2000))
    assert 20 <= faster <= 65


def test_parked_steps_are_predicted_as_plain_ones() -> None:
    stats = Stats(prompt_tokens=1)
    for _ in range(6):
        stats.add_round(0, 0, 1, num_drafted=0, parked=True, draft_s=0.0, verify_s=0.0)
    stats.add_round(4, 4, 5, num_drafted=4, parked=False, draft_s=0.1, verify_s=0.0)
    assert predicted_seconds(stats, TABLE) == pytest.approx(6 * 0.9 + 0.4 + 1.4)


class Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_needs_nothing_else() -> None:
    compared, _ = comparison()
    text = page("<model>", "Chip <1>, 8 cores", compared)
    checker = Checker()
    checker.feed(text)
    assert checker.links == []
    assert checker.tags.count("table") == 3
    assert checker.tags.count("svg") == 4
    assert "<model>" not in text
    assert "&lt;model&gt;" in text
    assert "Measured on: Chip &lt;1&gt;, 8 cores." in text


def test_the_page_calls_plain_decoding_by_one_name() -> None:
    log: list[str] = []
    runners = {n: Scripted({"chat": s}, 0.2, log, n) for n, s in (("none", 10.0), ("quick", 10.1))}
    compared = compare(runners, [LabPrompt(f"p{n}", "chat") for n in range(4)], Settings(0.0, 20))
    compared.names.sort(key=lambda name: name == "none")
    text = page("model", "Chip", compared)
    assert "noise before" in text
    assert "before none" not in text


def test_thirty_prompts_come_with_it() -> None:
    prompts = bundled()
    assert len(prompts) == 30
    kinds = [prompt.kind for prompt in prompts]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "code": 8, "math": 7, "chat": 8, "editing": 7
    }  # fmt: skip
    assert [p.kind for p in spread(prompts, 5)] == ["code", "math", "chat", "editing", "code"]
    # What `auto` takes them for.
    right = sum(kind_of(prompt.text) == prompt.kind for prompt in prompts)
    assert right >= 28


def test_prompts_are_read_from_files(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a", "kind": "mine"}\n{"prompt": "b"}\n')
    assert read(file) == [LabPrompt("a", "mine"), LabPrompt("b", "other")]
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path / "none")


def run(*arguments: str) -> Any:
    done = CliRunner().invoke(app, list(arguments))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_the_command(tiny: Path, data: Path) -> None:
    file = data / "prompts.jsonl"
    file.write_text("".join(f'{{"prompt": "w{n} w{n + 1}", "kind": "words"}}\n' for n in range(3)))
    common = [
        "compare",
        "-m",
        str(tiny),
        "-d",
        "ngram",
        "--prompts",
        str(file),
        "--max-tokens",
        "8",
    ]
    out = run(*common, "--html", str(data / "page.html"))
    assert "words (3 prompts)" in out.stdout
    assert "fastest: " in out.stdout
    machine = str(describe())
    assert machine in out.stdout
    assert "<svg" in (data / "page.html").read_text()
    for place in (data / "no-such-folder" / "page.html", data):
        with pytest.raises(UsageError, match="cannot be written"):
            run(*common, "-m", "/nowhere", "--html", str(place))
    report = json.loads(run(*common, "-d", "none", "--limit", "2", "--json").stdout)
    assert set(report["kinds"]["overall"]["drafters"]) == {"none", "ngram"}
    assert report["kinds"]["words"]["prompts"] == 2
    assert report["machine"] == machine


def test_a_runs_memory_is_its_own_and_the_profile_is_read_once(
    tiny: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = localspec.load(str(tiny), drafter="ngram")
    runner = ModelRunner(model)
    monkeypatch.setattr("localspec.profiles.read", lambda key: pytest.fail("read again"))
    prompt, settings = LabPrompt("w1 w2", "chat"), Settings(max_tokens=8)
    runner.run(prompt, settings, 0, None)
    alone = runner.memory
    assert alone >= model._target.nbytes
    others = mx.zeros(10_000_000)
    mx.eval(others)
    runner.run(prompt, settings, 0, None)
    assert runner.memory < alone + others.nbytes / 2
    assert runner.costs is None
    auto: Any = Auto({}, {"one": lambda: (random_drafter("dflash", model._target), Experience())})
    drafter: Any = auto.drafter("one")
    own = sum(array.nbytes for _, array in tree_flatten(drafter.parameters()))
    assert weights(model._target, auto) == weights(model._target, drafter)
    assert weights(model._target, drafter) == model._target.nbytes + own > model._target.nbytes


def test_a_drafter_that_cannot_be_used_is_passed_over(tiny: Path) -> None:
    said: list[str] = []
    names = ["ngram", str(tiny / "none"), "none"]
    loaded = [name for name, _ in load_usable(str(tiny), names, said.append)]
    assert loaded == ["ngram", "none"]
    assert any("is installed, but cannot be used: " in note for note in said)
