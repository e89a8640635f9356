"""`convert --check`: drafters trained for a second each, whose files do not say how to read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
import pytest
from families import make_model
from mlx.utils import tree_flatten
from test_models_drafters import block, config, random_tensors

from localspec.cli import run
from localspec.converters.foreign import Options
from localspec.engine import loading
from localspec.engine.target import Output, Target, TargetCache
from localspec.lab.readings import AS_CONVERTED, Readings, compare_readings
from localspec.models.config import ChainConfig, DrafterConfig, LayerConfig, Layout, RopeConfig
from localspec.models.drafter import Drafter
from localspec.models.load import with_tensors

GOLDEN = Path(__file__).parent / "golden"
LAYERS, LENGTH, TEXTS, STEPS = 5, 8, 256, 200
# So that what was learnt on short texts holds on the long one that is measured.
WINDOW = 4


@pytest.fixture(scope="module")
def target() -> Target:
    """A target whose next token depends on the last one above all, so that it is soon learnt."""
    model = make_model("llama", hidden_size=16, vocab_size=41, num_hidden_layers=LAYERS)
    weak = ("o_proj.weight", "down_proj.weight")
    parameters = tree_flatten(model.parameters())
    model.load_weights([(k, 0.1 * v if k.endswith(weak) else v) for k, v in parameters])
    return Target(model)


def train(config: DrafterConfig, target: Target) -> dict[str, mx.array]:
    """Tensors of a drafter that has learnt the target's likeliest next token, in this reading."""
    drafter = with_tensors(config, random_tensors(config, 0), "random weights")
    drafter.bind(target)
    rng = np.random.default_rng(0)
    texts = mx.array(rng.integers(0, target.vocab_size, (TEXTS, LENGTH)))
    output = target.forward(texts, target.new_cache(), taps=drafter.tap_layers)
    assert output.taps is not None
    taps, right = output.taps, mx.argmax(output.logits, axis=-1)

    def loss(position: int) -> mx.array:
        said: list[mx.array] = []

        def draw(logits: mx.array) -> tuple[mx.array, None]:
            said.append(logits)
            return mx.argmax(logits, axis=-1).astype(mx.int32), None

        state: Any = drafter.new_state()
        drafter.observe(state, texts[:, 1 : position + 1], taps[:, :position])
        drafter.propose(state, texts[:, position], 1, draw)
        logits = said[0].reshape(TEXTS, -1)
        return nn.losses.cross_entropy(logits, right[:, position], reduction="mean")

    optimizer, step = optim.Adam(1e-2), nn.value_and_grad(drafter, loss)
    for _ in range(STEPS):
        _, gradients = step(int(rng.integers(2, LENGTH)))
        optimizer.update(drafter, gradients)
        mx.eval(drafter.parameters(), optimizer.state)
    return dict(tree_flatten(drafter.parameters()))


def write(folder: Path, config: dict[str, Any], tensors: dict[str, mx.array]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    return folder


def foreign_config(case: str, **changed: Any) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((GOLDEN / case / "config.json").read_text())
    return config | changed


def block_drafter(layout: Layout) -> tuple[dict[str, Any], DrafterConfig]:
    """A z-lab config.json that does not say the layout, and what was trained."""
    nested = {"mask_token_id": 39, "target_layer_ids": [0, 1, 2], "is_causal": False}
    written = foreign_config("tiny-dflash-zlab", num_target_layers=LAYERS, dflash_config=nested)
    written |= {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}
    written |= {"sliding_window": WINDOW}
    shape = block(
        mask_token_id=39, layers=(LayerConfig(False, WINDOW),), layout=layout, block_size=4
    )
    trained = config("dflash", **sizes(written), tap_layers=(0, 1, 2), block=shape)
    return written, trained


def eagle_drafter() -> tuple[dict[str, Any], DrafterConfig]:
    """A speculators config.json that does not say what the residual is; a normed one was trained."""
    written = foreign_config("eagle3-speculators", draft_vocab_size=41)
    written["eagle_aux_hidden_state_layer_ids"] = [1, 2, 3]
    del written["norm_before_residual"]
    small = foreign_config("tiny-dflash-zlab")
    small |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    written["transformer_layer_config"] |= {
        key: small[key] for key in ("hidden_size", "intermediate_size", "head_dim", "vocab_size")
    } | {"num_attention_heads": 2, "num_key_value_heads": 1}
    written["transformer_layer_config"]["rope_parameters"] = {"rope_theta": 10000.0}
    chain = ChainConfig(feed_normed=False, norm_before_residual=True)
    trained = config(
        "eagle3", **sizes(small), qk_norm=False, own_head=True, tap_layers=(0, 1, 2), chain=chain
    )
    return written, trained


def sizes(written: dict[str, Any]) -> dict[str, Any]:
    return {
        "hidden_size": written["hidden_size"],
        "intermediate_size": written["intermediate_size"],
        "num_layers": 1,
        "num_heads": written["num_attention_heads"],
        "num_kv_heads": written["num_key_value_heads"],
        "head_dim": written["head_dim"],
        "rope": RopeConfig(theta=10000.0, dims=written["head_dim"]),
        "vocab_size": written["vocab_size"],
        "draft_vocab_size": written["vocab_size"],
        "target_hidden_size": written["hidden_size"],
        "target_layers": LAYERS,
    }


def test_a_layout_that_was_trained_wins(target: Target, tmp_path: Path) -> None:
    # Nothing is declared, so the conversion takes z-lab's layout, in which slot 0 predicts nothing.
    written, trained = block_drafter("every_slot_predicts")
    source = write(tmp_path / "drafter", written, train(trained, target))
    found = compare_readings(source, target, Options())
    assert found.agreements["layout every_slot_predicts"] > 0.2
    assert "layout every_slot_predicts" in found.too_close
    assert AS_CONVERTED not in found.too_close


class Obedient(Target):
    """Says next what a drafter drafts, nine times in ten, so that the drafter is a trained one."""

    drafter: Drafter

    def forward(self, tokens: mx.array, cache: TargetCache, **options: Any) -> Output:
        output = super().forward(tokens, cache, **options)
        if tokens.shape[1] == 1:
            return output
        assert output.taps is not None
        where = mx.array([options["taps"].index(tap) for tap in self.drafter.tap_layers])
        state, said = self.drafter.new_state(), [0]
        for position in range(1, tokens.shape[1]):
            anchor, taps = tokens[:, position], output.taps[:, position - 1 : position, where]
            self.drafter.observe(state, anchor[:, None], taps)
            proposal = self.drafter.propose(state, anchor, 1, lambda x: (mx.argmax(x, -1), None))
            assert proposal is not None
            said.append(proposal.tokens.item() if position % 10 else 0)
        return Output(10.0 * mx.eye(self.vocab_size)[mx.array(said)][None], output.taps)


def obedient(trained: DrafterConfig, tensors: dict[str, mx.array]) -> Obedient:
    model = make_model("llama", hidden_size=16, vocab_size=41, num_hidden_layers=LAYERS)
    target = Obedient(model)
    drafter = with_tensors(trained, tensors, "random weights")
    drafter.bind(target)
    target.drafter = drafter
    return target


def assert_wins(right: str, found: Readings) -> None:
    assert found.too_close == [right]
    assert found.agreements[right] > 0.85
    others = [share for name, share in found.agreements.items() if name != right]
    assert len(others) >= 2
    assert max(others) < 0.7


@pytest.mark.parametrize("layout", ["anchor_slot_unused", "every_slot_predicts"])
def test_layouts_are_told_apart(layout: Layout, tmp_path: Path) -> None:
    written, trained = block_drafter(layout)
    tensors = random_tensors(trained, 1)
    source = write(tmp_path / "drafter", written, tensors)
    right = AS_CONVERTED if layout == "anchor_slot_unused" else f"layout {layout}"
    found = compare_readings(source, obedient(trained, tensors), Options())
    assert_wins(right, found)


def test_taps_and_the_residual_are_told_apart(tmp_path: Path) -> None:
    written, trained = eagle_drafter()
    tensors = random_tensors(trained, 1)
    # States far larger than what the layer adds: whether they are normed is then of weight.
    tensors["fc.weight"] = 8 * tensors["fc.weight"]
    target = obedient(trained, tensors)
    # Nothing is said; then the residual is said wrong; then what the layer ids count.
    for number, (said, options, right) in enumerate(
        [
            ({}, Options(), AS_CONVERTED),
            ({"norm_before_residual": False}, Options(), "the residual normed"),
            ({}, Options(taps="outputs"), "taps [0, 1, 2]"),
        ]
    ):
        source = write(tmp_path / str(number), written | said, tensors)
        assert_wins(right, compare_readings(source, target, options))


def test_the_command_says_what_is_too_close_to_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = GOLDEN / "tiny-mtp-angelspec-dense"
    written = foreign_config(case.name)
    facts = {key: written[key] for key in ("hidden_size", "vocab_size")}
    target = Target(make_model("llama", num_hidden_layers=LAYERS, **facts))
    # With a norm of ones the drafter's own norm makes both readings of the last state the same.
    norm: Any = target.model.model.norm
    norm.weight = mx.ones_like(norm.weight)
    monkeypatch.setattr(loading, "load_target", lambda folder: target)
    (tmp_path / "config.json").write_text(json.dumps(facts))
    check = ["convert", str(case), "--target", str(tmp_path), "--check", "-o"]
    assert run([*check, str(tmp_path / "one")]) == 0
    out = capsys.readouterr().out
    rival = "the target's state before its norm"
    assert f"too close to call: {AS_CONVERTED}; {rival}" in out
    assert "was trained for" not in out
    assert run([*check, str(tmp_path / "two"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["too_close_to_call"] == list(report["first_draft_agreement"])
    assert list(report["first_draft_agreement"]) == [AS_CONVERTED, rival]
