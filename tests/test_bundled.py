"""The drafters that come with localspec, on the model that they were trained for."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import get_args

import pytest

import localspec
from localspec import catalog
from localspec.drafter_catalog import bundled_drafters, bundled_names
from localspec.model import Model
from localspec.models.config import Architecture
from localspec.provenance import fingerprint
from localspec.targets import worker

ARCHITECTURES = get_args(Architecture)
FOLDER = Path(localspec.__file__).parent / "bundled"
MOST_BYTES, MOST_BYTES_IN_ALL = 12_000_000, 60_000_000
OF_CARD = 0.7
"""Of the gain that the card tells: one prompt may be harder than most."""

PROMPT = "Write a Python function that returns the sum of the squares of a list of numbers."


def test_every_architecture_is_there_and_small() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(ARCHITECTURES)
    sizes = {
        folder.name: sum(file.stat().st_size for file in folder.iterdir())
        for folder in FOLDER.iterdir()
    }
    assert max(sizes.values()) <= MOST_BYTES, sizes
    assert sum(sizes.values()) <= MOST_BYTES_IN_ALL


def test_they_are_found_by_the_default_models_files_and_by_its_name(cache_folder: Path) -> None:
    mark = fingerprint(catalog.resolve_model(catalog.DEFAULT_MODEL))
    found = [drafter.name for drafter in bundled_drafters(mark)]
    assert sorted(found) == sorted(ARCHITECTURES)
    assert bundled_names(catalog.DEFAULT_MODEL) == found
    assert bundled_names("another") == []


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_each_drafts_what_the_model_says(name: str, smollm2: Model) -> None:
    card = json.loads((FOLDER / name / "training.json").read_text())
    assert card["architecture"] == name
    assert card["command"].startswith(f"localspec train {name} ")
    assert "/" not in card["command"]
    drafted = localspec.load(drafter=name)
    answer = drafted.generate(PROMPT, max_tokens=64, width=card["width"])
    plain = localspec.load(drafter="none").generate(PROMPT, max_tokens=64)
    assert answer.token_ids == plain.token_ids
    gain = card["accepted_length_by_kind"]["code"] - 1
    assert answer.stats.accepted_length > 1 + OF_CARD * gain


def test_a_drafter_leaves_memory_with_its_model(smollm2: Model) -> None:
    drafted = localspec.load(drafter="eagle3")
    drafted.generate(PROMPT, max_tokens=4)
    drafter = weakref.ref(drafted._bound)
    del drafted
    gc.collect()
    worker.call(lambda: None)  # what was posted before is done
    gc.collect()
    assert drafter() is None
