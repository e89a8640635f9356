"""A foreign checkpoint while it is being read: settings by key, tensors by name, and what was assumed.

Knows no dialect; the files of the dialects ask it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import mlx.core as mx

from localspec.errors import CheckpointRefused
from localspec.models.config import Layout, RopeConfig

TapReading = Literal["outputs", "inputs"]


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What a drafter's target is, as far as a checkpoint must fit it; num_layers None: not known."""

    hidden_size: int
    vocab_size: int
    num_layers: int | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """Conventions set by the user; None: as the files say, else the dialect's default.

    Attributes:
        dialect: whose conventions hold.
        layout: which slot of a block predicts which token.
        taps: whether layer ids count outputs or inputs of the target's layers.
        target_normed: MTP: whether the target's state is taken after its final norm.
        norm_before_residual: EAGLE-3: whether the residual is the normed state.
    """

    dialect: str | None = None
    layout: Layout | None = None
    taps: TapReading | None = None
    target_normed: bool | None = None
    norm_before_residual: bool | None = None


@dataclass(slots=True)
class Foreign:
    """Settings and tensors of one checkpoint.

    Attributes:
        config: config.json.
        tensors: under canonical names, once `rename` has run.
        target: what it must fit; None: not known.
        warnings: what was assumed or left out.
        foreign_names: canonical name to the name in the file.
    """

    config: dict[str, Any]
    tensors: dict[str, mx.array]
    options: Options
    target: TargetFacts | None = None
    warnings: list[str] = field(default_factory=list)
    foreign_names: dict[str, str] = field(default_factory=dict)

    @property
    def geometry(self) -> dict[str, Any]:
        """The part of config.json that describes the layers."""
        for key in ("transformer_layer_config", "text_config"):
            part = self.config.get(key)
            if isinstance(part, dict):
                return part
        return self.config

    @property
    def nested(self) -> dict[str, Any]:
        part = self.config.get("dflash_config")
        return part if isinstance(part, dict) else {}

    def find(self, *keys: str) -> Any:
        """The first of these keys that is set, at top level, in dflash_config, among the layers'."""
        for part in (self.config, self.nested, self.geometry):
            for key in keys:
                if part.get(key) is not None:
                    return part[key]
        return None

    def integer(self, *keys: str, default: int | None = None) -> int:
        value = self.find(*keys)
        if value is None and default is not None:
            return default
        if type(value) is not int:
            raise CheckpointRefused(f"config.json: {keys[0]} must be a whole number, not {value!r}")
        return value

    def number(self, *keys: str, default: float) -> float:
        value = self.find(*keys)
        if value is None:
            return default
        if type(value) not in (int, float):
            raise CheckpointRefused(f"config.json: {keys[0]} must be a number, not {value!r}")
        return float(value)

    def flag(self, *keys: str) -> bool | None:
        value = self.find(*keys)
        if value is not None and type(value) is not bool:
            raise CheckpointRefused(f"config.json: {keys[0]} must be true or false, not {value!r}")
        return value

    def rename(self, rules: list[tuple[str, str]], drop: Callable[[str], bool]) -> None:
        """Give tensors their canonical names, by regular expressions in order, and drop some.

        Raises:
            CheckpointRefused: two tensors come to have one name.
        """
        renamed: dict[str, mx.array] = {}
        for foreign, tensor in self.tensors.items():
            name = foreign
            for pattern, replacement in rules:
                name = re.sub(pattern, replacement, name)
            if drop(name):
                continue
            if name in renamed:
                raise CheckpointRefused(
                    f"the tensors {self.foreign_names[name]} and {foreign} are both {name}"
                )
            renamed[name] = tensor
            self.foreign_names[name] = foreign
        self.tensors = renamed

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self.tensors:
            raise CheckpointRefused(f"the checkpoint has no tensor {name}")
        return self.tensors[name].shape

    def rows(self, name: str) -> int:
        return self.matrix(name)[0]

    def matrix(self, name: str) -> tuple[int, int]:
        """Shape of a tensor that must have two dimensions."""
        shape = self.shape(name)
        if len(shape) != 2:
            raise CheckpointRefused(f"{name} has the shape {list(shape)}, but must be a matrix")
        return shape[0], shape[1]

    def num_layers(self) -> int:
        """Layers by tensor names; configurations are wrong about it in the wild."""
        found = {int(m[1]) for name in self.tensors if (m := re.match(r"layers\.(\d+)\.", name))}
        if found != set(range(len(found))) or not found:
            raise CheckpointRefused(
                f"layers are numbered {sorted(found)}, but must be 0, 1, 2, … without gaps"
            )
        return len(found)

    def attention(self, hidden: int) -> tuple[int, int, int]:
        """Heads, key/value heads and head_dim of layer 0, by shapes before configuration."""
        norm = "layers.0.self_attn.q_norm.weight"
        if norm in self.tensors:
            head_dim = self.shape(norm)[0]
        else:
            heads = self.integer("num_attention_heads")
            head_dim = self.integer("head_dim", default=hidden // max(heads, 1))
        rows = [self.rows(f"layers.0.self_attn.{part}_proj.weight") for part in "qk"]
        if head_dim < 1 or any(count % head_dim for count in rows):
            raise CheckpointRefused(
                f"q_proj and k_proj of layer 0 have {rows[0]} and {rows[1]} rows, which are no "
                f"multiples of head_dim {head_dim}"
            )
        return rows[0] // head_dim, rows[1] // head_dim, head_dim

    def rope(self, head_dim: int, *, scaled: bool = True, theta: float | None = None) -> RopeConfig:
        """Rotary positions; theta is kept in one of three places."""
        parts = [
            part
            for holder in (self.geometry, self.config)
            for key in ("rope_parameters", "rope_scaling")
            if isinstance(part := holder.get(key), dict)
        ]
        if theta is None:
            theta = self.number("rope_theta", default=0.0)
            found = [part["rope_theta"] for part in parts if "rope_theta" in part]
            theta = theta or (float(found[0]) if found else 0.0)
            if not theta:
                theta = 10000.0
                self.warnings.append("rope_theta is not given; 10000 is assumed")
        partial = self.number("partial_rotary_factor", default=0.0)
        shares = [
            part["partial_rotary_factor"] for part in parts if "partial_rotary_factor" in part
        ]
        partial = partial or (float(shares[0]) if shares else 1.0)
        neox = self.flag("rope_is_neox_style")
        return RopeConfig(
            theta=theta,
            dims=int(head_dim * partial),
            traditional=neox is False,
            scaling=_scaling(parts) if scaled else None,
            max_position_embeddings=self.find("max_position_embeddings"),
        )

    def stack_experts(self) -> None:
        """Experts, one matrix each or fused, to [E, out, in] under `switch_mlp`."""
        experts: dict[str, dict[int, mx.array]] = {}
        for name in list(self.tensors):
            if m := re.match(r"(.*mlp)\.experts\.(\d+)\.(\w+)\.weight$", name):
                stack = experts.setdefault(f"{m[1]}.switch_mlp.{m[3]}.weight", {})
                stack[int(m[2])] = self.tensors.pop(name)
            elif m := re.match(r"(.*mlp)\.experts_(\w+)$", name):
                # AngelSpec fuses experts as [E, in, out].
                fused = self.tensors.pop(name)
                self.tensors[f"{m[1]}.switch_mlp.{m[2]}.weight"] = mx.swapaxes(fused, 1, 2)
            elif m := re.match(r"(.*mlp)\.experts\.gate_up_proj$", name):
                gate, up = mx.split(self.tensors.pop(name), 2, axis=1)  # [E, 2I, D]
                self.tensors[f"{m[1]}.switch_mlp.gate_proj.weight"] = gate
                self.tensors[f"{m[1]}.switch_mlp.up_proj.weight"] = up
            elif m := re.match(r"(.*mlp)\.experts\.down_proj$", name):
                self.tensors[f"{m[1]}.switch_mlp.down_proj.weight"] = self.tensors.pop(name)
        for name, stack in experts.items():
            if set(stack) != set(range(len(stack))):
                raise CheckpointRefused(
                    f"experts of {name} are numbered {sorted(stack)}, with gaps"
                )
            shapes = {array.shape for array in stack.values()}
            if len(shapes) > 1:
                raise CheckpointRefused(f"experts of {name} differ in shape: {sorted(shapes)}")
            self.tensors[name] = mx.stack([stack[index] for index in range(len(stack))])


def _scaling(parts: list[dict[str, Any]]) -> dict[str, Any] | None:
    for part in parts:
        kind = part.get("rope_type", part.get("type", "default"))
        if kind not in ("default", "mrope"):
            # A drafter's positions are linear, whatever the target's images need.
            left_out = ("rope_theta", "mrope_section", "mrope_interleaved", "partial_rotary_factor")
            return {key: value for key, value in part.items() if key not in left_out}
    return None


def layer_ids(value: Any, key: str) -> list[int]:
    """A list of layer numbers out of config.json."""
    if not isinstance(value, list) or not value or any(type(item) is not int for item in value):
        raise CheckpointRefused(
            f"config.json: {key} must be a list of layer numbers, not {value!r}"
        )
    return value


def check_taps(taps: list[int], key: str, num_layers: int | None) -> tuple[int, ...]:
    """Taps as layer outputs, refused under the key they came from if the target lacks them."""
    if len(set(taps)) < len(taps):
        raise CheckpointRefused(f"config.json: {key} names a layer twice: {taps}")
    for tap in taps:
        if tap < -1 or (num_layers is not None and tap >= num_layers - 1):
            limit = f" and 0 to {num_layers - 2}" if num_layers else ""
            raise CheckpointRefused(
                f"config.json: {key} leads to the output of target layer {tap}; allowed are -1 (the "
                f"embeddings){limit} (the last layer's state is normed in some captures, raw in others)"
            )
    return tuple(taps)


def tensor_sizes(tensors: Mapping[str, mx.array]) -> int:
    """Elements in all."""
    return sum(array.size for array in tensors.values())
