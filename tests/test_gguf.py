from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gguf_writer import (
    HEAD_DIM,
    HIDDEN,
    Tensor,
    metadata,
    tensors,
    vocabulary,
    weights,
    write_gguf,
)
from hypothesis import given
from hypothesis import strategies as st
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model
from tokenizers import pre_tokenizers
from tokenizers.decoders import ByteLevel as ByteLevelDecoder

from localspec import catalog
from localspec.converters._gguf_file import GGUFFile
from localspec.converters._gguf_tokenizer import _PRE_TOKENIZERS, pre_tokenizer
from localspec.converters.gguf import import_gguf
from localspec.engine.precision import to_float32
from localspec.errors import CheckpointRefused
from localspec.text.chat import render_chat
from localspec.text.tokenizer import load_tokenizer

GOLDEN = json.loads((Path(__file__).parent / "golden" / "smollm2-reference.json").read_text())


# The default model against numbers that another implementation computed.


@pytest.fixture(scope="module")
def smollm() -> Path:
    return catalog.resolve_model(catalog.DEFAULT_MODEL, notify=None)


@pytest.fixture(scope="module")
def smollm_tokenizer(smollm: Path) -> Any:
    return load_tokenizer(smollm)


@pytest.mark.parametrize("case", GOLDEN["tokenise"], ids=lambda case: case["text"][:12])
def test_golden_texts(smollm_tokenizer: Any, case: dict[str, Any]) -> None:
    assert smollm_tokenizer.encode(case["text"]) == case["ids"]
    assert smollm_tokenizer.decode(case["ids"]) == case["decoded"]


@pytest.mark.parametrize("case", GOLDEN["greedy"], ids=lambda case: case["user"][:12])
def test_golden_prompts(smollm_tokenizer: Any, case: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": case["user"]}]
    ids = render_chat(smollm_tokenizer, messages)
    assert ids == case["prompt_ids"]
    assert smollm_tokenizer.decode(ids) == case["prompt_text"]


def test_golden_greedy_ids(smollm: Path, smollm_tokenizer: Any) -> None:
    model, _ = load_model(smollm, lazy=True)
    to_float32(model)
    for case in GOLDEN["greedy"]:
        # Each id is the likeliest after the ones before; one pass over the text shows it for all.
        text, ids = case["prompt_ids"] + case["ids"], case["ids"]
        logits = model(mx.array([text[:-1]]))[0, -len(ids) :]
        assert mx.argmax(logits, axis=-1).tolist() == ids
        assert smollm_tokenizer.decode(ids) == case["text"]


def test_golden_logits(smollm: Path) -> None:
    # The reference rounded each dequantised weight to float16 before it became float32.
    exact, _ = load_model(smollm, lazy=True)
    to_float32(exact)
    weights = mx.load(str(smollm / "model.safetensors"))
    for name, scales in list(weights.items()):
        if path := name.removesuffix(".scales") if name.endswith(".scales") else None:
            packed, biases = weights[f"{path}.weight"], weights.pop(f"{path}.biases")
            bits = packed.shape[1] // scales.shape[1]
            rounded = mx.dequantize(packed, scales, biases, group_size=32, bits=bits)
            assert rounded.dtype == mx.float16
            weights[f"{path}.weight"] = rounded.astype(mx.float32)
            del weights[name]
    difference = exact.model.embed_tokens.weight - weights["model.embed_tokens.weight"]
    assert 0 < mx.abs(difference).max() < 1e-3
    for case in GOLDEN["greedy"]:
        exact_logits = exact(mx.array([case["prompt_ids"]]))[0, -1]
        for token, value in case["first_top5"]:
            assert abs(exact_logits[token].item() - value) < 0.1
    exact.load_weights(list(weights.items()))
    for case in GOLDEN["greedy"]:
        logits = exact(mx.array([case["prompt_ids"]]))[0, -1]
        top = mx.argsort(-logits)[:5].tolist()
        assert top == [token for token, _ in case["first_top5"]]
        for token, value in case["first_top5"]:
            assert abs(logits[token].item() - value) < 2e-4


# A small llama, written the way llama.cpp writes it.


def imported(tmp_path: Path, keys: dict[str, Any], stored: dict[str, Tensor]) -> Path:
    folder = tmp_path / "model"
    import_gguf(write_gguf(tmp_path / "tiny.gguf", keys, stored), folder)
    return folder


def refusal(tmp_path: Path, keys: dict[str, Any], stored: dict[str, Tensor]) -> str:
    with pytest.raises(CheckpointRefused) as caught:
        imported(tmp_path, keys, stored)
    assert "tiny.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]
    return str(caught.value)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_the_weights_before(tmp_path: Path, tied: bool) -> None:
    plain = weights(tied=tied)
    model, config = load_model(imported(tmp_path, metadata(), tensors(plain)))
    assert config["head_dim"] == HEAD_DIM != HIDDEN // config["num_attention_heads"]
    assert config["tie_word_embeddings"] == tied
    assert config["rope_theta"] == 5000.0
    assert config["max_position_embeddings"] == 128
    assert config["rms_norm_eps"] == 1e-5
    assert "quantization" not in config
    ids = mx.array([[3, 5, 8, 13, 21, 34]])
    got = model(ids)
    model.load_weights([(name, mx.array(values)) for name, values in plain.items()])
    assert mx.array_equal(got, model(ids))


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1", "Q8_0", "Q6_K"])
def test_tensors_are_read_as_mlx_reads_them(tmp_path: Path, type_name: str) -> None:
    rng = np.random.default_rng(1)
    stored = {"a.weight": Tensor.random(type_name, (6, 512), rng)}
    path = write_gguf(tmp_path / "a.gguf", {"x": 1}, stored)
    expected = mx.load(str(path))
    parts = {
        f"a{part.suffix or '.weight'}": part.values for part in GGUFFile(path).read("a.weight")
    }
    assert parts.keys() == expected.keys()
    for name, values in parts.items():
        assert np.array_equal(values, np.array(expected[name])), name


def test_mixed_quantisation_gives_an_entry_a_layer(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    stored = tensors(weights(tied=False))
    for name, tensor in stored.items():
        if len(tensor.shape) == 2 and "attn_v" not in name:
            kind = "Q8_0" if "ffn_down" in name else "Q4_1" if "attn" in name else "Q4_0"
            stored[name] = Tensor.random(kind, tensor.shape, rng)
    values = rng.normal(0, 0.1, stored["output.weight"].shape).astype(np.float16)
    stored["output.weight"] = Tensor.of(values)
    folder = imported(tmp_path, metadata(), stored)
    config = json.loads((folder / "config.json").read_text())
    assert config["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "mode": "affine",
        "model.layers.0.mlp.down_proj": {"group_size": 32, "bits": 8, "mode": "affine"},
        "model.layers.1.mlp.down_proj": {"group_size": 32, "bits": 8, "mode": "affine"},
    }
    model, _ = load_model(folder)
    assert model.layers[0].mlp.down_proj.bits == 8
    assert model.layers[0].self_attn.q_proj.bits == 4
    assert model.lm_head.weight.dtype == mx.float16
    ids = mx.array([[3, 5, 8, 13]])
    before = model(ids)
    to_float32(model)
    assert {str(v.dtype) for _, v in tree_flatten(model.parameters())} == {"mlx.core.float32"}
    assert mx.allclose(before, model(ids), atol=1e-3)


def test_bfloat16_tensors_stay(tmp_path: Path) -> None:
    plain = weights()
    stored = tensors(plain)
    rounded = mx.array(plain["model.embed_tokens.weight"]).astype(mx.bfloat16)
    bits = np.array(rounded.view(mx.uint16))
    stored["token_embd.weight"] = Tensor("BF16", bits.shape, bits.tobytes())
    model, _ = load_model(imported(tmp_path, metadata(), stored))
    assert mx.array_equal(model.model.embed_tokens.weight, rounded)


def test_linear_rope_scaling(tmp_path: Path) -> None:
    keys = metadata(llama__rope__scaling__type="linear", llama__rope__scaling__factor=4.0)
    model, config = load_model(imported(tmp_path, keys, tensors(weights())))
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert model.layers[0].self_attn.rope.scale == 0.25


def llama3_factors(factor: float) -> np.ndarray[Any, Any]:
    factors = []
    for i in range(0, HEAD_DIM, 2):
        wavelength = 2 * np.pi * 500000.0 ** (i / HEAD_DIM)
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


def test_llama3_rope_factors_become_its_scaling(tmp_path: Path) -> None:
    stored = tensors(weights()) | {"rope_freqs.weight": Tensor.of(llama3_factors(32.0))}
    keys = metadata(llama__rope__freq_base=500000.0)
    model, config = load_model(imported(tmp_path, keys, stored))
    assert config["rope_scaling"]["factor"] == 32.0
    plain = 500000.0 ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    freqs = np.array(model.layers[0].self_attn.rope._freqs)
    assert np.allclose(freqs, plain * llama3_factors(32.0), rtol=1e-5)


def test_tokenizer_from_metadata(tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}</s>{% endfor %}"
    keys = metadata(tokenizer__chat_template=template, tokenizer__ggml__add_bos_token=True)
    folder = imported(tmp_path, keys, tensors(weights()))
    tokenizer = load_tokenizer(folder)
    tokens = vocabulary()[0]

    def pieces(text: str) -> list[str]:
        return [tokens[i] for i in tokenizer.encode(text, add_special_tokens=False)]

    assert pieces("the the") == ["the", "Ġthe"]
    assert pieces("123") == ["1", "2", "3"]  # digits are cut before any merge
    assert pieces("a<tool></s>") == ["a", "<tool>", "</s>"]
    assert tokenizer.encode("the") == [0, tokens.index("the")]
    assert render_chat(tokenizer, [{"role": "user", "content": "the"}]) == [
        0,
        tokens.index("the"),
        1,
    ]
    ids = tokenizer.encode("<tool>é</s>")
    assert tokenizer.decode(ids) == "<s><tool>é</s>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<tool>é"
    assert tokenizer.eos_token_ids == {1}


@given(st.text() | st.text(" a1٣ⅷ.'sx\n\t é漢", max_size=20))
def test_smollm_text_is_cut_as_its_own_tokenizer_cuts_it(text: str) -> None:
    own = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])
    pre = pre_tokenizer(_PRE_TOKENIZERS["smollm"])
    assert pre.pre_tokenize_str(text) == own.pre_tokenize_str(text)


@pytest.mark.parametrize("name", _PRE_TOKENIZERS)
def test_every_pre_tokenizer_keeps_all_text(name: str) -> None:
    text = "It's 12345 o'CLOCK,\n\n  naïve café 漢字 🙂 x+=1; //\t\r\n end "
    pieces = pre_tokenizer(_PRE_TOKENIZERS[name]).pre_tokenize_str(text)
    assert ByteLevelDecoder().decode([piece for piece, _ in pieces]) == text


def test_without_add_bos_the_pre_tokenizer_decides(tmp_path: Path) -> None:
    stored = tensors(weights())
    smollm = load_tokenizer(imported(tmp_path, metadata(), stored))
    assert smollm.encode("a") == smollm.encode("a", add_special_tokens=False)
    keys = metadata(tokenizer__ggml__pre="llama-bpe")
    (tmp_path / "other").mkdir()
    llama = load_tokenizer(imported(tmp_path / "other", keys, stored))
    assert llama.encode("a") == [0, *llama.encode("a", add_special_tokens=False)]
    tokens = vocabulary()[0]
    assert [tokens[i] for i in llama.encode("123")] == ["<s>", "123"]


def test_a_bos_token_of_any_characters(tmp_path: Path) -> None:
    tokens = vocabulary()[0]
    tokens[0] = "<| begin: of $A |>"
    keys = metadata(tokenizer__ggml__tokens=tokens, tokenizer__ggml__add_bos_token=True)
    tokenizer = load_tokenizer(imported(tmp_path, keys, tensors(weights())))
    assert tokenizer.encode("the") == [0, tokens.index("the")]


def test_several_end_tokens(tmp_path: Path) -> None:
    folder = imported(tmp_path, metadata(tokenizer__ggml__eot_token_id=7), tensors(weights()))
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] == [1, 7]
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [1, 7]


# Refusals.


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"general__architecture": "qwen3"}, "general.architecture is 'qwen3', but 'llama'"),
        ({"general__architecture": None}, "general.architecture is None"),
        ({"llama__expert_count": 8}, "llama.expert_count is 8, but 0 was expected"),
        ({"llama__block_count": None}, "llama.block_count is missing"),
        ({"llama__block_count": 3}, "no tensor gives model.layers.2"),
        ({"llama__block_count": 2**32 - 1}, "no tensor gives model.layers.10"),
        ({"llama__block_count": 1}, "tensor 'blk.1"),
        ({"llama__attention__head_count": 0}, "head_count is 0"),
        ({"llama__attention__head_count": "4"}, "head_count is '4'"),
        (
            {"llama__attention__head_count_kv": 4},
            "attn_k.weight' has shape [64, 64], but [128, 64]",
        ),
        ({"llama__rope__dimension_count": 16}, "rope.dimension_count is 16, but 32"),
        ({"llama__rope__scaling__type": "yarn"}, "scaling.type is 'yarn'"),
        ({"llama__rope__freq_base": -1.0}, "freq_base is -1.0"),
        ({"llama__attention__layer_norm_rms_epsilon": None}, "rms_epsilon is missing"),
        ({"llama__context_length": True}, "context_length is True"),
        ({"tokenizer__ggml__model": "llama"}, "tokenizer.ggml.model is 'llama', but 'gpt2'"),
        ({"tokenizer__ggml__pre": "mystery"}, "tokenizer.ggml.pre is 'mystery', but one of "),
        ({"tokenizer__ggml__tokens": None}, "tokenizer.ggml.tokens was expected"),
        ({"tokenizer__ggml__tokens": ["a"] * 9}, "token_type has 264 entries"),
        ({"tokenizer__ggml__tokens": ["a"] * 264}, "263 occur again"),
        ({"tokenizer__ggml__tokens": ["a"] * 300}, "has 264 rows, but 300 were expected"),
        ({"tokenizer__ggml__merges": ["no such"]}, "tokenizer.ggml.merges was expected to join"),
        ({"tokenizer__ggml__merges": ["nospace"]}, "tokenizer.ggml.merges was expected to join"),
        ({"tokenizer__ggml__eos_token_id": 999}, "eos_token_id is 999, but an id below 264"),
        ({"tokenizer__ggml__add_bos_token": 1}, "add_bos_token is 1, but true or false"),
        ({"split__count": 2}, "split.count is 2"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_metadata_that_is_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(tmp_path, metadata(**changes), tensors(weights()))


def test_tensors_that_are_refused(tmp_path: Path) -> None:
    stored = tensors(weights())
    k_quants = {"blk.0.attn_q.weight": Tensor("Q4_K", (128, 256), bytes(128 * 144))}
    sentence = refusal(tmp_path, metadata(), stored | k_quants)
    assert "'blk.0.attn_q.weight' has type Q4_K, but one of F32, F16" in sentence
    bias = {"blk.0.attn_q.bias": Tensor.of(np.zeros(128, np.float32))}
    assert "'blk.0.attn_q.bias' was not expected" in refusal(tmp_path, metadata(), stored | bias)
    norm = {"output_norm.weight": Tensor("Q8_0", (64,), bytes(68))}
    assert "has type Q8_0, but a plain float" in refusal(tmp_path, metadata(), stored | norm)
    table = {"rope_freqs.weight": Tensor.of(np.linspace(1, 8, 16, dtype=np.float32))}
    assert "rope_freqs.weight was expected" in refusal(tmp_path, metadata(), stored | table)
    del stored["token_embd.weight"]
    assert "token_embd.weight was expected" in refusal(tmp_path, metadata(), stored)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    for content, sentence in (
        (b"", "not a GGUF file"),
        (b"PK\3\4 something else", "not a GGUF file"),
        (b"GGUF", "is damaged"),
        (b"GGUF\1\0\0\0" + bytes(16), "version 1"),
        (b"GGUF\0\0\0\3" + bytes(16), "little-endian"),
        (b"GGUF\3\0\0\0" + b"\xff" * 40, "is damaged"),
    ):
        path.write_bytes(content)
        with pytest.raises(CheckpointRefused, match=sentence):
            import_gguf(path, tmp_path / "model")
    with pytest.raises(CheckpointRefused, match="cannot be read"):
        import_gguf(tmp_path / "missing.gguf", tmp_path / "model")


def test_a_file_cut_anywhere_or_with_any_byte_changed_never_crashes(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf", metadata(), tensors(weights())).read_bytes()
    path = tmp_path / "tiny.gguf"
    rng = np.random.default_rng(3)
    for number in range(300):
        content = bytearray(whole)
        if number % 3 == 0:
            content = content[: rng.integers(len(content))]
        else:
            # Most of what can go wrong is in the header's first part and the tensor table.
            end = 400 if number % 3 == 1 else len(content)
            for at in rng.integers(8, end, 3):
                content[at] = rng.integers(256)
        path.write_bytes(content)
        try:
            import_gguf(path, tmp_path / f"model-{number}")
        except CheckpointRefused as refused:
            assert "\n" not in str(refused)  # noqa: PT017
        else:
            assert number % 3
    assert not list(tmp_path.glob(".*"))


def test_a_read_only_file_is_enough(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", metadata(), tensors(weights()))
    path.chmod(0o444)
    import_gguf(path, tmp_path / "model")
    assert (tmp_path / "model" / "config.json").is_file()


# Atomicity.

IMPORT = "import sys, pathlib as p; from localspec.converters.gguf import import_gguf; "
IMPORT += "import_gguf(p.Path(sys.argv[1]), p.Path(sys.argv[2]))"


def test_a_taken_folder_is_left_alone(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", metadata(), tensors(weights()))
    folder = tmp_path / "model"
    folder.mkdir()
    import_gguf(path, folder)
    before = (folder / "config.json").stat().st_mtime_ns
    with pytest.raises(CheckpointRefused, match="exists already"):
        import_gguf(path, folder)
    assert (folder / "config.json").stat().st_mtime_ns == before


def test_imports_at_once_both_end_well(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", metadata(), tensors(weights()))
    folder = tmp_path / "model"
    code = IMPORT.replace("import_gguf(p", "input(); import_gguf(p")
    command = [sys.executable, "-c", code, str(path), str(folder)]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)
    ]
    for process in running:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    for process in running:
        _, errors = process.communicate(timeout=60)
        # One that starts after another has ended finds the folder taken.
        assert process.returncode == 0 or b"exists already" in errors
    load_model(folder)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "tiny.gguf"]


def test_a_killed_import_leaves_nothing_that_loads(tmp_path: Path, smollm: Path) -> None:
    source = catalog._packaged_file(catalog.BUNDLED[catalog.DEFAULT_MODEL])
    folder = tmp_path / "model"
    process = subprocess.Popen([sys.executable, "-c", IMPORT, str(source), str(folder)])
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".*.partial/model.safetensors")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not folder.exists()
    assert not list(tmp_path.rglob("config.json"))
