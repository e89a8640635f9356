"""Reading a foreign PyTorch checkpoint without trusting it: its config, and its tensors by name.

Every length is checked against the file before it is used, no file outside the folder is named by
a file inside it, and nothing in a pickle runs.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import mlx.core as mx
import numpy as np

from localspec.errors import CheckpointRefused

_CONFIG = "config.json"
_MAX_CONFIG = 4 << 20
_MAX_INDEX = 64 << 20
_MAX_HEADER = 100_000_000
_MAX_RANK = 8
# MLX counts each dimension in 32 bits, so no size, count or token id is larger.
_MAX_INT = 2**31
# Tied weights share their values in a pickle, and become an array each.
_MAX_SHARING = 4

_EXPECTED = (
    "config.json beside model.safetensors, its shards with their index, or pytorch_model.bin"
)
_SUFFIXES = (".safetensors", ".bin", ".pt")
_LEFTOVERS = {"training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.bin", "scheduler.pt"}
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=@ -]*")
_WRAPPED = re.compile(r"(?:.*\.)?draft_model\.|module\.|dflash_module\.|eagle_module\.|drafter\.")

# BF16 is read as bits, which numpy has no type for; BOOL as bytes, which may be neither 0 nor 1.
_DTYPES = {
    "BOOL": "u1",
    "U8": "u1",
    "I8": "i1",
    "U16": "u2",
    "I16": "i2",
    "F16": "f2",
    "BF16": "u2",
    "U32": "u4",
    "I32": "i4",
    "F32": "f4",
    "U64": "u8",
    "I64": "i8",
}

_TORCH_DTYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32"),
)

Only = Callable[[str], bool]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as it lies in its files: `tensors` under foreign names, `files` all that were read."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, mx.array]
    files: list[Path]


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json.

    Raises:
        CheckpointRefused: it is missing, too large, no JSON object, or holds a number that is not
            finite or too large, which the message names by its key.
    """
    path = folder / _CONFIG
    if not os.path.lexists(path):
        _refuse(path, f"is not in the folder {_quote(folder.name)}; expected {_EXPECTED}")
    config = _read_json(path, _MAX_CONFIG)
    for key, value in _leaves(config):
        if isinstance(value, float) and not math.isfinite(value):
            _refuse(folder / _CONFIG, f"{_quote(key)} is {value}, but a finite number was expected")
        if isinstance(value, int) and abs(value) > _MAX_INT:
            _refuse(
                folder / _CONFIG, f"{_quote(key)} is too large: at most {_MAX_INT} was expected"
            )
    return config


def read_checkpoint(source: Path, *, only: Only | None = None) -> Checkpoint:
    """Read a checkpoint from a folder, or from one tensor file that has config.json beside it.

    Args:
        source: the folder, or a .safetensors, .bin or .pt file.
        only: tells by its name whether a tensor is wanted; the others are not read.

    Raises:
        CheckpointRefused: a file is missing, malformed, truncated or unsafe.
    """
    if source.is_dir():
        folder, chosen = source, None
    else:
        folder, chosen = source.parent, source
        _size(source)
        if source.suffix not in _SUFFIXES:
            _refuse(source, f"is no {', '.join(_SUFFIXES)} file")
    config = read_config(folder)
    main = chosen or _tensor_file(folder)
    files = [folder / _CONFIG, main]
    wanted = only or (lambda name: True)
    if main.suffix != ".json":
        return Checkpoint(folder, config, _read_tensors(main, wanted, ()), files)

    tensors: dict[str, mx.array] = {}
    for shard, names in _shards(main).items():
        if not any(map(wanted, names)):
            continue
        files.append(folder / shard)
        part = _read_tensors(folder / shard, wanted, names)
        if twice := sorted(part.keys() & tensors.keys()):
            _refuse(
                folder / shard,
                f"tensor {_quote(twice[0])} is in another shard too; expected it once",
            )
        tensors |= part
    return Checkpoint(folder, config, tensors, files)


def file_hashes(files: Iterable[Path]) -> dict[str, str]:
    """The SHA-256 of each file, in hexadecimal, by its name."""
    hashes = {}
    for path in files:
        with path.open("rb") as file:
            hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def strip_prefixes(name: str) -> str:
    """A tensor's name without what trainers wrap a drafter in; `model.` stays."""
    while match := _WRAPPED.match(name):
        name = name[match.end() :]
    return name


def _refuse(path: Path, why: str) -> NoReturn:
    raise CheckpointRefused(f"{path}: {why}")


def _quote(name: str) -> str:
    """A name from a file as a message can show it: escaped, and of bounded length."""
    return repr(name if len(name) <= 200 else f"{name[:200]}…")


def _size(path: Path) -> int:
    """The size of a regular file, which a link may lead to."""
    try:
        if path.is_file():
            return path.stat().st_size
    except OSError:
        pass
    _refuse(path, "is missing, or no regular file that can be read")


def _read(path: Path, offset: int, length: int) -> bytes:
    """`length` bytes from `offset`, which the caller has checked against the file's size."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(length)
    except OSError as error:
        _refuse(path, f"cannot be read ({error.strerror})")
    if len(data) != length:
        _refuse(path, "became shorter while it was read")
    return data


def _read_json(path: Path, limit: int) -> dict[str, Any]:
    size = _size(path)
    if size > limit:
        _refuse(path, f"has {size} bytes; expected at most {limit}")
    return _parse(path, _read(path, 0, size), "expected a JSON object")


def _parse(path: Path, text: bytes, expected: str) -> dict[str, Any]:
    try:
        # No number needs more digits than these, and Python refuses to convert very long ones.
        parsed = json.loads(
            text.decode("utf-8"),
            parse_int=lambda digits: int(digits[:24]),
            object_pairs_hook=_object,
        )
    except (ValueError, RecursionError) as error:
        _refuse(path, f"{expected} ({str(error)[:200]})")
    if not isinstance(parsed, dict):
        _refuse(path, expected)
    return parsed


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {_quote(key)} occurs twice")
        found[key] = value
    return found


def _leaves(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each value that is no list or object, with its key path; however deep the config nests."""
    left: list[tuple[str, Any]] = [("", config)]
    while left:
        key, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{key}.{name}" if key else name, item) for name, item in value.items()]
        elif isinstance(value, list):
            left += [(f"{key}[{number}]", item) for number, item in enumerate(value)]
        else:
            yield key, value


def _tensor_file(folder: Path) -> Path:
    """The file that holds the folder's tensors, or the index of their shards."""
    for stem in ("model.safetensors", "pytorch_model.bin"):
        for name in (f"{stem}.index.json", stem):
            # A dead link is what an incomplete download leaves: to be refused, not passed over.
            if os.path.lexists(folder / name):
                return folder / name
    for suffixes in (_SUFFIXES[:1], _SUFFIXES[1:]):
        found = sorted(p for p in folder.iterdir() if p.suffix in suffixes)
        found = [path for path in found if path.name not in _LEFTOVERS]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(path.name for path in found[:4])
            _refuse(
                folder,
                f"{names} are more than one tensor file, without an index; expected {_EXPECTED}",
            )
    _refuse(folder, f"no tensor file; expected {_EXPECTED}")


def _shards(index: Path) -> dict[str, list[str]]:
    """The tensor names of each shard; a shard is a plain name with the suffix of the index."""
    suffix = Path(index.name.removesuffix(".index.json")).suffix
    weight_map = _read_json(index, _MAX_INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        _refuse(index, "'weight_map' was expected to map tensor names to shards")
    shards: dict[str, list[str]] = {}
    for name, shard in weight_map.items():
        # Only the name is judged: in the Hub's cache the file itself is a link out of the folder.
        if (
            not isinstance(shard, str)
            or not _SHARD.fullmatch(shard)
            or Path(shard).suffix != suffix
        ):
            _refuse(
                index,
                f"tensor {_quote(name)} is in {_quote(str(shard))}; expected the plain name of a "
                f"{suffix} file in the same folder",
            )
        shards.setdefault(shard, []).append(name)
    return shards


def _read_tensors(path: Path, wanted: Only, promised: Iterable[str]) -> dict[str, mx.array]:
    """The wanted tensors of one file, which must hold the promised ones that are wanted."""
    read = _read_safetensors if path.suffix == ".safetensors" else _read_torch
    tensors = read(path, wanted)
    for name in promised:
        if name not in tensors and wanted(name):
            _refuse(path, f"tensor {_quote(name)} is missing; the index expects it here")
    return tensors


def _read_safetensors(path: Path, wanted: Only) -> dict[str, mx.array]:
    size = _size(path)
    if size < 8:
        _refuse(path, f"has {size} bytes; expected the length of a safetensors header")
    length = int.from_bytes(_read(path, 0, 8), "little")
    if length > min(size - 8, _MAX_HEADER):
        _refuse(path, f"announces a header of {length} bytes, but the file has {size}")
    header = _parse(path, _read(path, 8, length), "expected a safetensors header")
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
            _refuse(path, f"tensor {_quote(name)} is {dtype}; expected {', '.join(_DTYPES)}")
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
            _refuse(path, f"tensor {_quote(name)} was expected to have a type, shape and offsets")
    if len(shape) > _MAX_RANK or not all(type(n) is int and 0 <= n < _MAX_INT for n in shape):
        _refuse(path, f"tensor {_quote(name)} has no possible shape: {str(shape)[:100]}")
    needed = math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize if dtype in _DTYPES else None
    if not 0 <= begin <= end or needed not in (None, end - begin):
        _refuse(path, f"tensor {_quote(name)} has {end - begin} bytes; expected {needed}")
    return begin, end, name


def _read_torch(path: Path, wanted: Only) -> dict[str, mx.array]:
    size = _size(path)
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        _refuse(path, "needs PyTorch to be read: install `localspec[torch]`")
    try:
        zipped = zipfile.is_zipfile(path)
        if zipped:
            with zipfile.ZipFile(path) as archive:
                # Unpacking could take any amount of memory; torch.save never packs.
                if any(item.compress_type != zipfile.ZIP_STORED for item in archive.infolist()):
                    raise ValueError("a part of it is compressed")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:
        # The rest of PyTorch's text advises to load the file without protection.
        asked = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"asks for {_quote(asked[1])}" if asked else "is damaged or of another kind"
        _refuse(path, f"{reason}; expected a PyTorch file of nothing but tensors")

    tensors = {}
    needed = 0
    for name, value in _unwrapped(path, loaded, torch.Tensor).items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            _refuse(path, f"{_quote(str(name))} is a {type(value).__name__}; expected a tensor")
        if not wanted(name):
            continue
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype not in _TORCH_DTYPES or value.layout != torch.strided or value.is_meta:
            kind = f"{value.layout}, {dtype}".removeprefix("torch.")
            _refuse(path, f"tensor {_quote(name)} is {kind}; expected {', '.join(_TORCH_DTYPES)}")
        needed += value.numel() * value.element_size()
        if needed > _MAX_SHARING * size:
            _refuse(path, f"tensor {_quote(name)} is larger than the file allows: {needed} bytes")
        bits = value.view(torch.int16) if dtype == "bfloat16" else value
        array = mx.array(bits.contiguous().numpy(force=True))
        tensors[name] = array.view(mx.bfloat16) if dtype == "bfloat16" else array
    return tensors


def _unwrapped(path: Path, loaded: Any, tensor: type) -> dict[Any, Any]:
    """The state dict itself, also where a trainer saved it as one of several things."""
    if not isinstance(loaded, dict):
        _refuse(path, f"holds a {type(loaded).__name__}; expected tensors by name")
    wrappers = [key for key in ("state_dict", "model") if isinstance(loaded.get(key), dict)]
    if not wrappers:
        return loaded
    if len(wrappers) > 1 or any(isinstance(value, tensor) for value in loaded.values()):
        _refuse(path, f"holds more than {_quote(wrappers[0])}; expected all tensors in one place")
    state: dict[Any, Any] = loaded[wrappers[0]]
    return state
