"""Reading a foreign PyTorch checkpoint without trusting it: its config, and its tensors by name.

Every length is checked before use, only files of the folder open, and nothing in a pickle runs.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import re
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import mlx.core as mx
import numpy as np

from localspec.errors import CheckpointRefused

_MAX_CONFIG, _MAX_INDEX, _MAX_HEADER, _MAX_RANK = 4 << 20, 64 << 20, 100_000_000, 8
_MAX_INT = 2**31  # MLX counts each dimension in 32 bits, so no size, count or token id is larger
_MAX_SHARING = 4  # tied weights share their values in a pickle, and become an array each

_EXPECTED = "expected config.json and model.safetensors, pytorch_model.bin or indexed shards"
_SUFFIXES = (".safetensors", ".bin", ".pt")
_OTHERS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.bin", "scheduler.pt")
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=@ -]*")
_WRAPPED = re.compile(r"\A((.*\.)?draft_model\.|(module|dflash_module|eagle_module|drafter)\.)+")

# BF16 is read as bits, which numpy has no type for; BOOL as bytes, which may be neither 0 nor 1.
_SAFETENSORS = "BOOL:u1 U8:u1 I8:i1 U16:u2 I16:i2 F16:f2 BF16:u2 U32:u4 I32:i4 F32:f4 U64:u8 I64:i8"
_DTYPES = dict(pair.split(":") for pair in _SAFETENSORS.split())
_TORCH = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as it lies in its files: `tensors` by foreign name, `files` all that were read."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, mx.array]
    files: list[Path]


def read_config(source: Path) -> dict[str, Any]:
    """The config.json of a folder, or that beside a file of weights.

    Raises:
        CheckpointRefused: it is missing, no JSON object, or has a key with no possible number.
    """
    path = (source if source.is_dir() else source.parent) / "config.json"
    if source.is_file() and not path.is_file():
        _refuse(source, f"expected config.json beside it, but there is no {path}")
    config = _read_json(path, 0, _size(path, _MAX_CONFIG))
    left: list[tuple[str, Any]] = [("", config)]
    while left:
        key, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{key[:99]}.{k}" if key else k, item) for k, item in value.items()]
        elif isinstance(value, list):
            left += [(f"{key[:99]}[{number}]", item) for number, item in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            _refuse(path, f"{_quote(key)} is {value}; expected a finite number")
        elif isinstance(value, int) and abs(value) > _MAX_INT:
            _refuse(path, f"{_quote(key)} is too large; expected at most {_MAX_INT}")
    return config


def read_checkpoint(source: Path, *, only: Callable[[str], bool] | None = None) -> Checkpoint:
    """Read a checkpoint from a folder, or from one tensor file that has config.json beside it.

    Args:
        source: the folder, or a .safetensors, .bin or .pt file.
        only: tells by its name whether a tensor is wanted; the others are left out.

    Raises:
        CheckpointRefused: a file is missing, malformed, truncated or unsafe.
    """
    folder = source if source.is_dir() else source.parent
    if folder != source and source.suffix not in _SUFFIXES:
        _refuse(source, f"is no folder; expected one, or a file with {', '.join(_SUFFIXES)}")
    config = read_config(source)
    main = _tensor_file(folder) if folder == source else source
    files = [folder / "config.json", main]
    shards = _shards(main) if main.suffix == ".json" else {main.name: []}
    tensors: dict[str, mx.array] = {}
    for path, names in ((folder / shard, names) for shard, names in shards.items()):
        if only and names and not any(map(only, names)):
            continue
        files.append(path)
        read = _read_safetensors if path.suffix == ".safetensors" else _read_torch
        part = read(path, only or (lambda name: True))
        for name in names:
            if name not in part and (not only or only(name)):
                _refuse(path, f"tensor {_quote(name)} is missing; {main.name} expects it here")
        for name in part.keys() & tensors.keys():
            _refuse(path, f"tensor {_quote(name)} is in two shards; expected it in one")
        tensors |= part
    return Checkpoint(folder, config, tensors, list(dict.fromkeys(files)))


def file_hashes(files: Iterable[Path]) -> dict[str, str]:
    """The SHA-256 of each file, in hexadecimal, by its name."""
    hashes = {}
    for path in files:
        with path.open("rb") as file:
            hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def strip_prefixes(name: str) -> str:
    """A tensor's name without what trainers wrap a drafter in; `model.` stays."""
    return _WRAPPED.sub("", name)


def _refuse(path: Path, why: str) -> NoReturn:
    raise CheckpointRefused(f"{path}: {why}")


def _quote(name: str) -> str:
    """A name from a file as a message can show it: escaped, and of bounded length."""
    return repr(name if len(name) <= 200 else f"{name[:200]}…")


def _size(path: Path, limit: float = math.inf) -> int:
    """The size of a regular file, which a link may lead to."""
    size = os.path.getsize(path) if os.path.isfile(path) else -1
    if size < 0:
        _refuse(path, f"is missing, or no regular file; {_EXPECTED}")
    if size > limit:
        _refuse(path, f"has {size} bytes; expected at most {limit}")
    return size


def _read(path: Path, offset: int, length: int) -> bytes:
    """`length` bytes from `offset`, which the caller has checked against the file's size."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(length)
    except OSError as error:
        _refuse(path, f"cannot be read ({error.strerror})")
    if len(data) != length:
        _refuse(path, f"ends early; expected {length} bytes at {offset}")
    return data


def _read_json(path: Path, offset: int, length: int) -> dict[str, Any]:
    try:
        # Python refuses to convert very long numbers; this many digits are too large anyway.
        parsed = json.loads(_read(path, offset, length), parse_int=lambda n: int(n[:24]))
    except (ValueError, RecursionError) as error:
        _refuse(path, f"expected a JSON object ({str(error)[:200]})")
    if not isinstance(parsed, dict):
        _refuse(path, "expected a JSON object")
    return parsed


def _tensor_file(folder: Path) -> Path:
    """The file that holds the folder's tensors, or the index of their shards."""
    for stem in ("model.safetensors", "pytorch_model.bin"):
        for name in (f"{stem}.index.json", stem):
            # A dead link is what an incomplete download leaves: to be refused, not passed over.
            if os.path.lexists(folder / name):
                return folder / name
    for kinds in (_SUFFIXES[:1], _SUFFIXES[1:]):
        files = sorted(p for p in folder.iterdir() if p.suffix in kinds and p.name not in _OTHERS)
        if len(files) == 1:
            return files[0]
        if files:
            _refuse(files[1], f"is a second tensor file, and there is no index; {_EXPECTED}")
    _refuse(folder, f"has no tensor file; {_EXPECTED}")


def _shards(index: Path) -> dict[str, list[str]]:
    """The tensor names of each shard; a shard is a plain name with the suffix of the index."""
    suffix = Path(index.stem.removesuffix(".index")).suffix
    weight_map = _read_json(index, 0, _size(index, _MAX_INDEX)).get("weight_map")
    if not isinstance(weight_map, dict):
        _refuse(index, "'weight_map' is missing; expected the file of each tensor")
    shards: dict[str, list[str]] = {}
    for name, shard in weight_map.items():
        # Only the name is judged: in the Hub's cache the file itself is a link out of the folder.
        if not (isinstance(shard, str) and _SHARD.fullmatch(shard) and shard.endswith(suffix)):
            where = f"tensor {_quote(name)} is in {_quote(str(shard))}"
            _refuse(index, f"{where}; expected the plain name of a {suffix} file beside the index")
        shards.setdefault(shard, []).append(name)
    return shards


def _read_safetensors(path: Path, wanted: Callable[[str], bool]) -> dict[str, mx.array]:
    size = _size(path)
    length = int.from_bytes(_read(path, 0, 8), "little")
    if length > min(size - 8, _MAX_HEADER):
        _refuse(path, f"has {size} bytes; expected a header of {length} bytes in it")
    header = _read_json(path, 8, length)
    header.pop("__metadata__", None)
    layout = sorted(_entry(path, name, entry) for name, entry in header.items())
    position = 0
    for begin, end, name in layout:
        if begin != position:
            _refuse(path, f"tensor {_quote(name)} starts at {begin}; expected {position}")
        position = end
    if position != size - 8 - length:
        _refuse(path, f"holds {size - 8 - length} bytes of tensors; expected {position}")
    tensors = {}
    for begin, end, name in layout:
        if not wanted(name):
            continue
        dtype = header[name]["dtype"]
        if dtype not in _DTYPES:
            _refuse(path, f"tensor {_quote(name)} is {_quote(dtype)}; expected {' '.join(_DTYPES)}")
        data = _read(path, 8 + length + begin, end - begin)
        values = np.frombuffer(data, _DTYPES[dtype]).reshape(header[name]["shape"])
        array = mx.array(values != 0 if dtype == "BOOL" else values)
        tensors[name] = array.view(mx.bfloat16) if dtype == "BF16" else array
    return tensors


def _entry(path: Path, name: str, entry: Any) -> tuple[int, int, str]:
    """Where a tensor of a safetensors file begins and ends, once its entry makes sense."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
            pass
        case _:
            _refuse(path, f"tensor {_quote(name)} is malformed; expected type, shape and offsets")
    if len(shape) > _MAX_RANK or not all(type(n) is int and 0 <= n < _MAX_INT for n in shape):
        _refuse(path, f"tensor {_quote(name)} has shape {_quote(str(shape))}; expected sizes")
    needed = math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize if dtype in _DTYPES else None
    if not 0 <= begin <= end or needed not in (None, end - begin):
        _refuse(path, f"tensor {_quote(name)} has {end - begin} bytes; expected {needed or 0}")
    return begin, end, name


def _read_torch(path: Path, wanted: Callable[[str], bool]) -> dict[str, mx.array]:
    size = _size(path)
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        _refuse(path, "needs PyTorch; expected it installed: install `localspec[torch]`")
    try:
        zipped = zipfile.is_zipfile(path)
        if zipped:
            with zipfile.ZipFile(path) as archive:
                # Unpacking could take any amount of memory; torch.save never packs.
                if any(item.compress_type != zipfile.ZIP_STORED for item in archive.infolist()):
                    raise ValueError("compressed")
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:
        # The rest of PyTorch's text advises to load the file without protection.
        asked = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"asks for {_quote(asked[1])}" if asked else "is damaged or of another kind"
        _refuse(path, f"{reason}; expected a PyTorch file of nothing but tensors")
    if not isinstance(loaded, dict):
        _refuse(path, f"holds a {type(loaded).__name__}; expected tensors by name")
    if wrappers := [k for k in ("state_dict", "model") if isinstance(loaded.get(k), dict)]:
        if len(wrappers) > 1 or any(isinstance(value, torch.Tensor) for value in loaded.values()):
            _refuse(path, f"has more than {_quote(wrappers[0])}; expected all tensors in one place")
        loaded = loaded[wrappers[0]]
    tensors = {}
    needed = 0
    for name, value in loaded.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            _refuse(path, f"{_quote(str(name))} is a {type(value).__name__}; expected a tensor")
        if not wanted(name):
            continue
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype not in _TORCH.split() or value.layout != torch.strided or value.is_meta:
            _refuse(path, f"tensor {_quote(name)} is {dtype}, {value.layout}; expected {_TORCH}")
        needed += value.numel() * value.element_size()
        if needed > _MAX_SHARING * size:
            _refuse(path, f"tensor {_quote(name)} is too large; expected its values in the file")
        bits = value.detach().view(torch.int16 if dtype == "bfloat16" else value.dtype)
        array = mx.array(bits.contiguous().numpy(force=True))
        tensors[name] = array.view(mx.bfloat16) if dtype == "bfloat16" else array
    return tensors
