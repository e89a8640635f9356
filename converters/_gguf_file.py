"""Reading a GGUF file without trusting it: metadata, and tensors as numpy arrays in MLX's layout.

Every length is checked against the file before it is used, and tensors are mapped read-only, one at
a time. (`mx.load` opens GGUF files for writing and does not check them.)
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import CheckpointRefused, reason

MAGIC = b"GGUF"
GROUP_SIZE = 32
"""Weights that share a scale, in every quantisation that stays as it is."""

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING = 8
_ARRAY = 9

_TYPE_NAMES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    20: "IQ4_NL",
    23: "IQ4_XS",
    30: "BF16",
    39: "MXFP4",
}

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Part:
    """One array that a tensor becomes: its suffix and safetensors type, and its values (bits)."""

    suffix: str
    dtype: str
    values: Array


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a tensor type is stored, and what it becomes.

    Attributes:
        block: weights in a block.
        num_bytes: bytes in a block.
        bits: bits of a weight in MLX's quantised form, or None for plain floats.
        unpack: rows of blocks [rows, blocks, bytes] to the arrays that stand for them.
    """

    block: int
    num_bytes: int
    bits: int | None
    unpack: Callable[[Array], list[Part]]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies, and its shape, rows first."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    num_bytes: int

    @property
    def bits(self) -> int | None:
        """Bits of a quantised weight, or None for a plain tensor."""
        return _LAYOUTS[self.type_name].bits


class GGUFFile:
    """A checked GGUF file.

    Attributes:
        path: the file.
        metadata: scalars, strings and lists by key.
        tensors: what is in it, by name.

    Raises:
        CheckpointRefused: it is no GGUF file of a known version, is damaged or cut short, or holds a
            tensor type that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        try:
            with path.open("rb") as file:
                if file.read(4) != MAGIC:
                    raise CheckpointRefused(
                        f"{path} is not a GGUF file: it does not start with 'GGUF'"
                    )
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CheckpointRefused(f"{path} cannot be read: {reason(error)}") from error
        self._at = len(MAGIC)
        try:
            self._read_header()
        except (struct.error, UnicodeDecodeError, OverflowError) as error:
            raise self._damaged(
                "its header ends early or is not text where text belongs"
            ) from error

    def read(self, name: str) -> list[Part]:
        """A tensor's arrays: one plain array, or `weight`, `scales` and `biases`."""
        info = self.tensors[name]
        layout = _LAYOUTS[info.type_name]
        rows = math.prod(info.shape[:-1])
        stored = np.frombuffer(self._map, np.uint8, info.num_bytes, info.offset)
        parts = layout.unpack(stored.reshape(rows, -1, layout.num_bytes))
        return [
            Part(part.suffix, part.dtype, part.values.reshape(*info.shape[:-1], -1))
            for part in parts
        ]

    def _damaged(self, how: str) -> CheckpointRefused:
        return CheckpointRefused(f"{self.path} is damaged: {how}")

    def _read_header(self) -> None:
        version = self._scalar("<I")
        if version not in _VERSIONS:
            raise CheckpointRefused(
                f"{self.path} is GGUF version {version}, but little-endian version 2 or 3 was expected"
            )
        num_tensors, num_keys = self._scalar("<Q"), self._scalar("<Q")
        for _ in range(num_keys):
            key = self._string()
            self.metadata[key] = self._value(self._scalar("<I"))
        infos = [self._tensor_info() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise self._damaged(f"general.alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        for name, shape, type_name, offset in infos:
            self._add_tensor(name, shape, type_name, start + offset)

    def _tensor_info(self) -> tuple[str, tuple[int, ...], str, int]:
        name = self._string()
        num_dimensions = self._scalar("<I")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise self._damaged(f"tensor '{name}' has {num_dimensions} dimensions")
        shape = tuple(self._scalar("<Q") for _ in range(num_dimensions))[::-1]
        number = self._scalar("<I")
        return name, shape, _TYPE_NAMES.get(number, f"number {number}"), self._scalar("<Q")

    def _add_tensor(self, name: str, shape: tuple[int, ...], type_name: str, offset: int) -> None:
        layout = _LAYOUTS.get(type_name)
        if layout is None:
            raise CheckpointRefused(
                f"{self.path}: tensor '{name}' has type {type_name}, but one of "
                f"{', '.join(_LAYOUTS)} was expected"
            )
        if 0 in shape or shape[-1] % layout.block:
            raise self._damaged(f"tensor '{name}' of type {type_name} has shape {list(shape)}")
        num_bytes = math.prod(shape) // layout.block * layout.num_bytes
        if offset + num_bytes > len(self._map):
            raise self._damaged(
                f"tensor '{name}' ends at byte {offset + num_bytes}, but the file has "
                f"{len(self._map)} bytes; download it again"
            )
        self.tensors[name] = TensorInfo(name, shape, type_name, offset, num_bytes)

    def _scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._map, self._at)
        self._at += struct.calcsize(form)
        return value

    def _string(self) -> str:
        length = self._scalar("<Q")
        if length > len(self._map) - self._at:
            raise self._damaged(f"a text of {length} bytes does not fit into the file")
        self._at += length
        return self._map[self._at - length : self._at].decode()

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY and depth < 2:
            item_kind, length = self._scalar("<I"), self._scalar("<Q")
            if length > len(self._map) - self._at:
                raise self._damaged(f"a list of {length} values does not fit into the file")
            if item_kind in _SCALARS:
                form = f"<{length}{_SCALARS[item_kind][1]}"
                values = list(struct.unpack_from(form, self._map, self._at))
                self._at += struct.calcsize(form)
                return values
            return [self._value(item_kind, depth + 1) for _ in range(length)]
        if kind not in _SCALARS:
            raise self._damaged(f"a metadata value has the unknown type {kind}")
        return self._scalar(_SCALARS[kind])


def _plain(dtype: str, bits_dtype: Any) -> Callable[[Array], list[Part]]:
    def unpack(blocks: Array) -> list[Part]:
        return [Part("", dtype, blocks.reshape(len(blocks), -1).view(bits_dtype))]

    return unpack


def _half(blocks: Array, start: int) -> Array:
    return np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16)[..., 0]


def _quantised(packed: Array, scales: Array, biases: Array) -> list[Part]:
    words = np.ascontiguousarray(packed).reshape(len(packed), -1).view(np.uint32)
    return [
        Part(".weight", "U32", words),
        Part(".scales", "F16", scales),
        Part(".biases", "F16", biases.astype(np.float16)),
    ]


def _repack_nibbles(stored: Array) -> Array:
    """GGUF keeps weights i and i + 16 in a byte, MLX 2i and 2i + 1."""
    weights = np.concatenate([stored & 15, stored >> 4], axis=-1)
    packed: Array = weights[..., ::2] | weights[..., 1::2] << 4
    return packed


def _unpack_q4_0(blocks: Array) -> list[Part]:
    scales = _half(blocks, 0)
    return _quantised(_repack_nibbles(blocks[..., 2:]), scales, scales * np.float16(-8))


def _unpack_q4_1(blocks: Array) -> list[Part]:
    return _quantised(_repack_nibbles(blocks[..., 4:]), _half(blocks, 0), _half(blocks, 2))


def _unpack_q8_0(blocks: Array) -> list[Part]:
    # Signed bytes become unsigned ones, 128 higher.
    scales = _half(blocks, 0)
    return _quantised(blocks[..., 2:] ^ 128, scales, scales * np.float16(-128))


def _unpack_q6_k(blocks: Array) -> list[Part]:
    """MLX has no 6-bit groups of 16; files that are otherwise Q4_0 keep their output matrix so."""
    low, high = blocks[..., :128], blocks[..., 128:192]
    group_scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8)
    scale = _half(blocks, 208).astype(np.float32)[..., None] * group_scales
    quarters = []
    for half in range(2):
        nibbles = low[..., 64 * half : 64 * half + 64]
        pairs = high[..., 32 * half : 32 * half + 32]
        lows = (
            nibbles[..., :32] & 15,
            nibbles[..., 32:] & 15,
            nibbles[..., :32] >> 4,
            nibbles[..., 32:] >> 4,
        )
        quarters += [part | (pairs >> 2 * i & 3) << 4 for i, part in enumerate(lows)]
    weights = np.concatenate(quarters, axis=-1).astype(np.float32) - 32
    values = weights.reshape(*scale.shape, 16) * scale[..., None]
    return [Part("", "F16", values.reshape(len(blocks), -1).astype(np.float16))]


_LAYOUTS = {
    "F32": _Layout(1, 4, None, _plain("F32", np.float32)),
    "F16": _Layout(1, 2, None, _plain("F16", np.float16)),
    "BF16": _Layout(1, 2, None, _plain("BF16", np.uint16)),
    "Q4_0": _Layout(32, 18, 4, _unpack_q4_0),
    "Q4_1": _Layout(32, 20, 4, _unpack_q4_1),
    "Q8_0": _Layout(32, 34, 8, _unpack_q8_0),
    "Q6_K": _Layout(256, 210, None, _unpack_q6_k),
}
