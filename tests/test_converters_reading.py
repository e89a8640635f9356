from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localspec.converters import reading
from localspec.converters.reading import (
    file_hashes,
    read_checkpoint,
    read_config,
    strip_prefixes,
)
from localspec.errors import CheckpointRefused

CONFIG = {"architectures": ["Drafter"], "hidden_size": 4, "nested": {"ids": [1, 2]}}
BFLOATS = np.array([[0x3F80, 0xC000, 0x7F80]], np.uint16)
VALUES: dict[str, tuple[str, np.ndarray[Any, Any]]] = {
    "fc.weight": ("F32", np.arange(6, dtype=np.float32).reshape(2, 3)),
    "half": ("F16", np.array([1.5, -2.0], np.float16)),
    "bf": ("BF16", BFLOATS),
    "d2t": ("I64", np.array([0, 2**40, -1], np.int64)),
    "t2d": ("BOOL", np.array([True, False, True])),
    "scalar": ("F32", np.array(2.5, np.float32)),
    "none": ("F32", np.zeros((0, 3), np.float32)),
}


def safetensors(
    values: dict[str, tuple[str, np.ndarray[Any, Any]]] = VALUES, **changed: Any
) -> bytes:
    """A safetensors file; `changed` replaces the header entry of a tensor."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, array) in values.items():
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    return framed(header | changed) + data


def framed(header: Any) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


def one(name: str, dtype: str = "F32") -> bytes:
    return safetensors({name: (dtype, np.zeros(2, np.float32))})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a config; each test adds the tensor files."""
    path = tmp_path / "drafter"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def refusal(source: Path) -> str:
    with pytest.raises(CheckpointRefused) as caught:
        read_checkpoint(source)
    message = str(caught.value)
    assert "\n" not in message
    assert "expect" in message
    return message.removeprefix(str(source))


def assert_read(tensors: dict[str, mx.array]) -> None:
    assert tensors.keys() == VALUES.keys()
    for name, (dtype, array) in VALUES.items():
        got = tensors[name]
        assert got.shape == array.shape
        if dtype == "BF16":
            assert got.dtype == mx.bfloat16
            got = got.view(mx.uint16)
        assert np.array(got).dtype == array.dtype
        np.testing.assert_array_equal(np.array(got), array)


def test_reads_every_type_exactly(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(safetensors())
    checkpoint = read_checkpoint(folder)
    assert_read(checkpoint.tensors)
    assert checkpoint.folder == folder
    assert checkpoint.config == CONFIG
    assert checkpoint.files == [folder / "config.json", folder / "model.safetensors"]
    assert file_hashes(checkpoint.files) == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in checkpoint.files
    }


def test_reads_a_single_file(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(one("other"))
    (folder / "epoch-3.safetensors").write_bytes(safetensors())
    checkpoint = read_checkpoint(folder / "epoch-3.safetensors")
    assert_read(checkpoint.tensors)
    assert checkpoint.files[1] == folder / "epoch-3.safetensors"


@pytest.mark.parametrize("name", ["missing", "missing.safetensors", "notes.txt", "config.json"])
def test_refuses_another_file(folder: Path, name: str) -> None:
    (folder / "notes.txt").write_text("")
    with pytest.raises(CheckpointRefused, match=name):
        read_checkpoint(folder / name)


def test_only_reads_what_is_wanted(folder: Path) -> None:
    # A type that cannot be read does not matter where it is not wanted.
    values = VALUES | {"f8": ("F8_E4M3", np.zeros(3, np.uint8))}
    (folder / "model.safetensors").write_bytes(safetensors(values))
    assert read_checkpoint(folder, only=lambda name: name == "bf").tensors.keys() == {"bf"}


def test_finds_the_one_tensor_file(folder: Path) -> None:
    assert "no tensor file" in refusal(folder)
    (folder / "training_args.bin").write_bytes(b"")
    assert "no tensor file" in refusal(folder)
    (folder / "eagle.safetensors").write_bytes(safetensors())
    assert_read(read_checkpoint(folder).tensors)
    (folder / "second.safetensors").write_bytes(safetensors())
    assert "second.safetensors" in refusal(folder)
    (folder / "model.safetensors").write_bytes(one("model"))
    assert read_checkpoint(folder).tensors.keys() == {"model"}


# config.json


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("architectures:\n  - Drafter\n", "JSON object"),
        ("", "JSON object"),
        ("[1, 2]", "JSON object"),
        ('{"a": 1', "JSON object"),
        ("[" * 100_000, "JSON object"),
        ('{"hidden_size": NaN}', "'hidden_size' is nan"),
        ('{"hidden_size": -Infinity}', "'hidden_size' is -inf"),
        ('{"hidden_size": 1e999}', "'hidden_size' is inf"),
        ('{"hidden_size": 1000000000000}', "'hidden_size' is too large"),
        ('{"hidden_size": -2147483649}', "'hidden_size' is too large"),
        ('{"a": {"ids": [1, 2147483649]}}', "'a.ids[1]' is too large"),
        (f'{{"hidden_size": {"9" * 5000}}}', "'hidden_size' is too large"),
        (f'{{"{"k" * 100_000}": {[2**40] * 1000}}}', "kkk"),
        ('{"\\ud800": 1e999}', "\\ud800"),
        (f'{{"a": "{"x" * (4 << 20)}"}}', "at most 4194304"),
    ],
)
def test_refuses_a_config(folder: Path, text: str, named: str) -> None:
    (folder / "config.json").write_text(text)
    (folder / "model.safetensors").write_bytes(safetensors())
    message = refusal(folder)
    assert "config.json" in message
    assert named in message
    assert len(message.encode()) < 1000


def test_refuses_a_config_that_is_no_text(folder: Path) -> None:
    (folder / "config.json").write_bytes(b'{"a": "\xff"}')
    assert "config.json" in refusal(folder)


def test_keeps_ordinary_numbers(folder: Path) -> None:
    config = {"rope_theta": 1e10, "eps": 1e-6, "tie": True, "size": 2**31, "window": None}
    (folder / "config.json").write_text(json.dumps(config))
    assert read_config(folder) == config


def test_an_empty_folder_says_what_was_expected(tmp_path: Path) -> None:
    message = refusal(tmp_path)
    assert "config.json" in message
    assert "model.safetensors" in message


# safetensors


def header_cases() -> Iterator[Any]:
    entry: dict[str, Any] = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    for label, changed in {
        "type-missing": {"dtype": None},
        "type-unknown": {"dtype": "F7"},
        "type-f8": {"dtype": "F8_E4M3", "shape": [24]},
        "type-f64": {"dtype": "F64", "shape": [3]},
        "shape-negative": {"shape": [-2, -3]},
        "shape-fraction": {"shape": [2.0, 3]},
        "shape-boolean": {"shape": [True, 6]},
        "shape-huge": {"shape": [2**31, 0], "data_offsets": [0, 0]},
        "shape-overflow": {"shape": [2**30] * 8},
        "shape-deep": {"shape": [6] + [1] * 8},
        "shape-of-other-size": {"shape": [2, 4]},
        "shape-text": {"shape": "23"},
        "offsets-reversed": {"data_offsets": [24, 0]},
        "offsets-negative": {"data_offsets": [-24, 0]},
        "offsets-three": {"data_offsets": [0, 24, 24]},
        "offsets-outside": {"data_offsets": [2**60, 2**60 + 24]},
        "offsets-digits": {"data_offsets": [0, 10**5000 // 10**4000]},
        "offsets-overlap": {"data_offsets": [4, 28]},
    }.items():
        yield pytest.param(entry | changed, id=label)
    for label, whole in {"list": [1], "null": None, "nan": float("nan")}.items():
        yield pytest.param(whole, id=f"entry-{label}")


@pytest.mark.parametrize("entry", list(header_cases()))
def test_refuses_a_header_entry(folder: Path, entry: Any) -> None:
    (folder / "model.safetensors").write_bytes(safetensors(**{"fc.weight": entry}))
    message = refusal(folder)
    assert "model.safetensors" in message
    assert "'fc.weight'" in message or "'half'" in message


def test_refuses_overlapping_tensors_and_holes(folder: Path) -> None:
    file = folder / "model.safetensors"
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    file.write_bytes(framed({"a": entry, "b": entry}) + bytes(8))
    assert "'b' starts at 0; expected 8" in refusal(folder)
    file.write_bytes(framed({"a": entry, "b": entry | {"data_offsets": [12, 20]}}) + bytes(20))
    assert "'b' starts at 12; expected 8" in refusal(folder)
    file.write_bytes(framed({"a": entry}) + bytes(9))
    assert "holds 9 bytes of tensors; expected 8" in refusal(folder)


@pytest.mark.parametrize("length", [2**62, 2**64 - 1, 10**6, 100_000_001])
def test_refuses_a_header_bomb(folder: Path, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(length.to_bytes(8, "little") + b"{}")
    if length == 100_000_001:
        os.truncate(file, 2 * length)
    asked: list[int] = []
    read: Any = reading._read

    def counting(path: Path, offset: int, length: int) -> Any:
        asked.append(length)
        return read(path, offset, length)

    monkeypatch.setattr(reading, "_read", counting)
    assert "model.safetensors" in refusal(folder)
    assert max(asked) < 1000


@pytest.mark.parametrize("header", [b"", b"[]", b"\xff\xff", b"{" * 10, b"[" * 100_000])
def test_refuses_a_header_that_is_no_object(folder: Path, header: bytes) -> None:
    data = len(header).to_bytes(8, "little") + header
    (folder / "model.safetensors").write_bytes(data)
    assert "model.safetensors" in refusal(folder)


def test_refuses_every_truncation(folder: Path) -> None:
    whole = safetensors()
    for length in range(len(whole)):
        (folder / "model.safetensors").write_bytes(whole[:length])
        assert "model.safetensors" in refusal(folder)


def test_messages_escape_and_shorten_names(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(one("a\n\x1b[31m" + "x" * 10_000, "F8_E5M2"))
    message = refusal(folder)
    assert r"a\n\x1b[31mxxx" in message
    assert len(message) < 1000


def damaged(data: bytes, draw: st.DataObject) -> bytes:
    """Some bytes replaced, and often the end, a middle or nothing cut out."""
    out = bytearray(data)
    places = st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255))
    for place, value in draw.draw(st.lists(places, max_size=4)):
        out[place] = value
    begin, end = sorted(draw.draw(st.tuples(*[st.integers(0, len(data))] * 2)))
    if draw.draw(st.booleans()):
        del out[begin:end]
    return bytes(out)


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    try:
        yield
    except CheckpointRefused as error:
        if name not in str(error):
            pytest.fail(f"{name} is not named: {error}")
        raise


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(draw=st.data())
def test_damage_is_refused_or_read(name: str, draw: st.DataObject) -> None:
    files = {"model.safetensors": safetensors(), "config.json": json.dumps(CONFIG).encode()}
    files[name] = damaged(files[name], draw)
    with tempfile.TemporaryDirectory() as path:
        for file, data in files.items():
            (Path(path) / file).write_bytes(data)
        # Nothing else may be raised, and the message names the file.
        with contextlib.suppress(CheckpointRefused), naming(name):
            mx.eval(read_checkpoint(Path(path)).tensors)


# Shards


def write_shards(folder: Path, weight_map: Any, **shards: bytes) -> None:
    for name, data in shards.items():
        (folder / f"{name}.safetensors").write_bytes(data)
    index = json.dumps({"metadata": {"total_size": 2**50}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index)


def test_reads_shards(folder: Path) -> None:
    weight_map = {"a": "s1.safetensors", "b": "s2.safetensors"}
    write_shards(folder, weight_map, s1=one("a"), s2=one("b"))
    checkpoint = read_checkpoint(folder)
    assert checkpoint.tensors.keys() == {"a", "b"}
    names = ["config.json", "model.safetensors.index.json", "s1.safetensors", "s2.safetensors"]
    assert [path.name for path in checkpoint.files] == names


def test_only_opens_shards_that_are_wanted(folder: Path) -> None:
    weight_map = {"a": "s1.safetensors", "b": "s2.safetensors", "c": "s2.safetensors"}
    write_shards(folder, weight_map, s2=one("b"))
    checkpoint = read_checkpoint(folder, only=lambda name: name == "b")
    assert checkpoint.tensors.keys() == {"b"}
    assert folder / "s1.safetensors" not in checkpoint.files


@pytest.mark.parametrize(
    "shard",
    [
        "../evil.safetensors",
        "{parent}/evil.safetensors",
        "sub/evil.safetensors",
        "sub\\evil.safetensors",
        "..",
        "evil.bin",
        ".safetensors",
        "evil\x00.safetensors",
        "\ud800.safetensors",
        7,
        None,
    ],
)
def test_refuses_a_shard_outside_unopened(
    folder: Path, shard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sub").mkdir()
    for place in (folder.parent, folder / "sub"):
        (place / "evil.safetensors").write_bytes(one("b"))
    if isinstance(shard, str):
        shard = shard.replace("{parent}", str(folder.parent))
    write_shards(folder, {"a": "s1.safetensors", "b": shard}, s1=one("a"))
    monkeypatch.setattr(reading, "_read_safetensors", lambda *_: pytest.fail("opened a shard"))
    message = refusal(folder)
    assert "model.safetensors.index.json" in message
    assert repr(str(shard)) in message


def test_refuses_what_an_index_gets_wrong(folder: Path) -> None:
    write_shards(folder, {"a": "s1.safetensors"})
    assert "s1.safetensors: is missing" in refusal(folder)
    write_shards(folder, {"a": "s1.safetensors", "b": "s1.safetensors"}, s1=one("a"))
    assert "s1.safetensors: tensor 'b' is missing" in refusal(folder)
    weight_map = {"a": "s1.safetensors", "b": "s2.safetensors"}
    both = {name: ("F32", np.zeros(2, np.float32)) for name in "ab"}
    write_shards(folder, weight_map, s1=one("a"), s2=safetensors(both))
    assert "s2.safetensors: tensor 'a' is in two shards" in refusal(folder)
    write_shards(folder, [])
    assert "model.safetensors.index.json: 'weight_map' is missing" in refusal(folder)
    (folder / "model.safetensors.index.json").write_text("weight_map:")
    assert "model.safetensors.index.json" in refusal(folder)


def test_refuses_an_index_of_no_sensible_size(folder: Path) -> None:
    (folder / "model.safetensors.index.json").touch()
    os.truncate(folder / "model.safetensors.index.json", 2**40)
    assert "at most" in refusal(folder)


def test_reads_links_as_the_hub_lays_them_out(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    index = json.dumps({"weight_map": dict.fromkeys(VALUES, "s1.safetensors")}).encode()
    files = {
        "config.json": json.dumps(CONFIG).encode(),
        "model.safetensors.index.json": index,
        "s1.safetensors": safetensors(),
    }
    for name, data in files.items():
        blob = blobs / hashlib.sha256(data).hexdigest()
        blob.write_bytes(data)
        (snapshot / name).symlink_to(Path("../../blobs") / blob.name)
    checkpoint = read_checkpoint(snapshot)
    assert_read(checkpoint.tensors)
    assert (
        file_hashes(checkpoint.files)["s1.safetensors"]
        == hashlib.sha256(files["s1.safetensors"]).hexdigest()
    )
    (snapshot / "s1.safetensors").unlink()
    (snapshot / "s1.safetensors").symlink_to("../../blobs/none")
    assert "s1.safetensors: is missing" in refusal(snapshot)


def test_a_dead_link_is_not_passed_over(folder: Path) -> None:
    (folder / "model.safetensors").symlink_to("nowhere")
    (folder / "other.safetensors").write_bytes(safetensors())
    assert "model.safetensors: is missing" in refusal(folder)


def test_refuses_what_is_no_regular_file(folder: Path) -> None:
    os.mkfifo(folder / "model.safetensors")
    assert "no regular file" in refusal(folder)


# PyTorch files


class RunsACommand:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def state(torch: Any) -> dict[str, Any]:
    """VALUES as tensors."""
    made = {name: torch.from_numpy(array.copy()) for name, (_, array) in VALUES.items()}
    made["bf"] = torch.from_numpy(BFLOATS.view(np.int16).copy()).view(torch.bfloat16)
    made["fc.weight"] = torch.nn.Parameter(made["fc.weight"].T.contiguous().T)
    return made


def test_needs_torch_only_for_its_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (folder / "pytorch_model.bin").write_bytes(b"")
    message = refusal(folder)
    assert "pytorch_model.bin" in message
    assert "install `localspec[torch]`" in message
    (folder / "model.safetensors").write_bytes(safetensors())
    assert_read(read_checkpoint(folder).tensors)


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "epoch_3.pt"])
def test_reads_torch_files(
    folder: Path, torch: Any, state: dict[str, Any], wrapper: str | None, zipped: bool, name: str
) -> None:
    saved = {wrapper: state, "epoch": 3} if wrapper else state
    torch.save(saved, folder / name, _use_new_zipfile_serialization=zipped)
    checkpoint = read_checkpoint(folder)
    assert_read(checkpoint.tensors)
    assert checkpoint.files == [folder / "config.json", folder / name]


def test_reads_torch_shards_and_what_is_wanted(
    folder: Path, torch: Any, state: dict[str, Any]
) -> None:
    torch.save({"bf": state["bf"]}, folder / "p-1.bin")
    torch.save({"half": state["half"], "d2t": state["d2t"]}, folder / "p-2.bin")
    weight_map = {"bf": "p-1.bin", "half": "p-2.bin", "d2t": "p-2.bin"}
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert read_checkpoint(folder).tensors.keys() == {"bf", "half", "d2t"}
    checkpoint = read_checkpoint(folder, only=lambda name: name == "d2t")
    assert checkpoint.tensors["d2t"].tolist() == [0, 2**40, -1]
    assert checkpoint.tensors.keys() == {"d2t"}
    index.write_text(json.dumps({"weight_map": {"bf": "../p-1.bin"}}))
    assert "'../p-1.bin'" in refusal(folder)


@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle"])
def test_no_pickle_runs_a_command(folder: Path, torch: Any, kind: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    content = {"w": torch.zeros(2), "x": RunsACommand(trace)}
    file = folder / "pytorch_model.bin"
    if kind == "pickle":
        file.write_bytes(pickle.dumps({"x": RunsACommand(trace)}))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=kind == "zip")
    message = refusal(folder)
    assert "pytorch_model.bin" in message
    assert "weights_only" not in message
    assert not trace.exists()


def test_refuses_torch_files_of_something_else(folder: Path, torch: Any) -> None:
    w = torch.zeros(2)
    for content, named in [
        ([w], "holds a list"),
        ({"w": w, "epoch": 3}, "'epoch' is a int"),
        ({"w": w, "names": ["a"]}, "'names' is a list"),
        ({0: w}, "'0' is a"),
        ({"state_dict": {"w": w}, "extra": w}, "more than 'state_dict'"),
        ({"state_dict": {"w": w}, "model": {"v": w}}, "more than 'state_dict'"),
        ({"w": w.double()}, "'w' is float64"),
        ({"w": w.to(torch.float8_e4m3fn)}, "'w' is float8_e4m3fn"),
        ({"w": w.to_sparse()}, "'w' is float32, torch.sparse_coo"),
        ({"w": w.to("meta")}, "'w' is "),
        ({"w": torch.zeros(1).expand(10**6, 10**6)}, "'w' is too large"),
    ]:
        torch.save(content, folder / "pytorch_model.bin")
        assert named in refusal(folder)


def test_refuses_damaged_torch_files(folder: Path, torch: Any, state: dict[str, Any]) -> None:
    file = folder / "pytorch_model.bin"
    for zipped in (True, False):
        torch.save(state, file, _use_new_zipfile_serialization=zipped)
        whole = file.read_bytes()
        for length in (*range(0, len(whole), 97), len(whole) - 1):
            file.write_bytes(whole[:length])
            assert "pytorch_model.bin" in refusal(folder)


def test_refuses_a_packed_torch_file(folder: Path, torch: Any) -> None:
    file = folder / "pytorch_model.bin"
    torch.save({"w": torch.zeros(2)}, folder / "plain")
    with zipfile.ZipFile(folder / "plain") as plain, zipfile.ZipFile(file, "w") as packed:
        for item in plain.infolist():
            packed.writestr(item.filename, plain.read(item), zipfile.ZIP_DEFLATED)
    assert "pytorch_model.bin" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "stripped"),
    [
        ("fc.weight", "fc.weight"),
        ("model.fc.weight", "model.fc.weight"),
        ("module.fc.weight", "fc.weight"),
        ("module.module.draft_model.fc.weight", "fc.weight"),
        ("model_state.model.draft_model.layers.0.w", "layers.0.w"),
        ("model_state.model.draft_model.model.norm", "model.norm"),
        ("draft_model.drafter.dflash_module.eagle_module.norm", "norm"),
        ("dflash_module.model.layers.0.module.w", "model.layers.0.module.w"),
        ("submodule.w", "submodule.w"),
        ("undraft_model.w", "undraft_model.w"),
    ],
)
def test_strips_prefixes(name: str, stripped: str) -> None:
    assert strip_prefixes(name) == stripped
