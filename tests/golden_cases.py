"""Golden cases of `localspec`: finds their folders, reads them, and runs a bound drafter through one.

Used by tests only. Knows nothing of dialects: who made the drafter from the folder is the caller's.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from localspec.models.drafter import Drafter, Proposal

ROUNDS = ("round1", "round2")


def case_folders(kind: str = "") -> list[Path]:
    """Folders with a `case.json` in tests/golden and in LOCALSPEC_GOLDEN, by name.

    Args:
        kind: subfolder of each root; "bad" for the inputs that must be refused.
    """
    roots = [Path(__file__).parent / "golden"]
    if extra := os.environ.get("LOCALSPEC_GOLDEN"):
        roots.append(Path(extra))
    return sorted(path.parent for root in roots for path in (root / kind).glob("*/case.json"))


@dataclass(frozen=True)
class TargetStub:
    """A target that is an embedding table [V, D], a head [V, D], and a number of layers."""

    embedding: mx.array
    head_weight: mx.array
    num_layers: int

    @property
    def hidden_size(self) -> int:
        return self.embedding.shape[1]

    @property
    def vocab_size(self) -> int:
        return self.head_weight.shape[0]

    def embed(self, tokens: mx.array) -> mx.array:
        return self.embedding[tokens]

    def head(self, hidden: mx.array) -> mx.array:
        return hidden @ self.head_weight.T


@dataclass(frozen=True)
class GoldenCase:
    """One folder: `facts` is its case.json, `arrays` its case.safetensors."""

    folder: Path
    facts: dict[str, Any]
    arrays: dict[str, mx.array]

    @classmethod
    def read(cls, folder: Path) -> GoldenCase:
        facts = json.loads((folder / "case.json").read_text(encoding="utf-8"))
        arrays = mx.load(str(folder / "case.safetensors"))
        assert isinstance(arrays, dict)
        return cls(folder, facts, arrays)

    @property
    def target(self) -> TargetStub:
        tensors = mx.load(str(self.folder / "target.safetensors"))
        assert isinstance(tensors, dict)
        # Cases that do not say how many layers the target has work with any number.
        layers = self.facts["target_layers"] or 24
        return TargetStub(tensors["embed_tokens.weight"], tensors["lm_head.weight"], layers)

    def observed(self, name: str) -> tuple[mx.array, mx.array]:
        """What `observe` is given before a round: next tokens [1, n] and taps [1, n, T, D]."""
        stage = "prompt" if name == "round1" else "accepted"
        hidden = self.arrays.get(f"input.{stage}_hidden")
        taps = self.arrays[f"input.{stage}_taps"] if hidden is None else hidden[None]  # [T, n, D]
        if stage == "prompt":
            prompt, anchor = self.arrays["input.prompt_tokens"], self.arrays["input.anchor"]
            tokens = mx.concatenate([prompt[1:], anchor])
        else:
            tokens = self.arrays["input.accepted_tokens"]
        return tokens[None], taps.transpose(1, 0, 2)[None]

    def expected(self, name: str, what: str) -> mx.array | None:
        """`draft_tokens`, `draft_logits` or `confidence` of a round; None where the case has none."""
        return self.arrays.get(f"expected.{name}.{what}")


class RecordingGreedyDraw:
    """Draws the argmax, and keeps the logits [N, Vd] it was shown."""

    def __init__(self) -> None:
        self._seen: list[mx.array] = []

    def __call__(self, logits: mx.array) -> tuple[mx.array, mx.array | None]:
        self._seen.append(logits.reshape(-1, logits.shape[-1]))
        return mx.argmax(logits, axis=-1).astype(mx.int32), None

    @property
    def logits(self) -> mx.array:
        return mx.concatenate(self._seen)


@dataclass(frozen=True)
class Difference:
    """How far a round was off: whether the drafts differ, and the largest absolute differences."""

    tokens: bool
    logits: float
    confidence: float


def run_case(case: GoldenCase, drafter: Drafter) -> dict[str, Difference]:
    """Both rounds, greedily, through `observe` and `propose` of a drafter bound to `case.target`."""
    state, differences = drafter.new_state(), {}
    for name in ROUNDS:
        next_tokens, taps = case.observed(name)
        drafter.observe(state, next_tokens, taps)
        draw = RecordingGreedyDraw()
        proposal = drafter.propose(state, next_tokens[:, -1], case.facts["proposals"], draw)
        assert proposal is not None
        differences[name] = _compare(case, name, proposal, draw.logits)
    return differences


def _compare(case: GoldenCase, name: str, proposal: Proposal, logits: mx.array) -> Difference:
    tokens = case.expected(name, "draft_tokens")
    expected_logits = case.expected(name, "draft_logits")
    confidence = case.expected(name, "confidence")
    assert tokens is not None
    assert expected_logits is not None
    assert logits.shape == expected_logits.shape, (logits.shape, expected_logits.shape)
    off = 0.0
    if confidence is not None:
        assert proposal.confidence is not None
        off = _apart(proposal.confidence[0], confidence)
    return Difference(
        tokens=not bool(mx.array_equal(proposal.tokens[0], tokens)),
        logits=_apart(logits, expected_logits),
        confidence=off,
    )


def _apart(one: mx.array, other: mx.array) -> float:
    largest = mx.max(mx.abs(one - other)).item()
    assert isinstance(largest, float)
    return largest
