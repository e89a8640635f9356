"""A foreign checkpoint while it is being read: settings by key, tensors by name, and what was assumed.

Knows no dialect; the files of the dialects ask it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

import mlx.core as mx

from localspec.errors import CheckpointRefused, DrafterMismatch
from localspec.models.config import Layout, RopeConfig

_HEAD_NORMS = (".self_attn.q_norm.weight", ".self_attn.k_norm.weight")

TapReading = Literal["outputs", "inputs"]


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What a drafter's target is, as far as a checkpoint must fit it; num_layers None: not known."""

    hidden_size: int
    vocab_size: int
    num_layers: int | None = None

    @classmethod
    def of_config(cls, config: dict[str, Any]) -> TargetFacts | None:
        """What a target's config.json says of it; None: not under the usual keys."""
        part = config.get("text_config")
        part = part if isinstance(part, dict) else config
        sizes = [part.get(key) for key in ("hidden_size", "vocab_size", "num_hidden_layers")]
        whole = [size for size in sizes if type(size) is int]
        return cls(*whole) if len(whole) == len(sizes) else None


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
        inverse: regular expressions that lead back, for tensors that the file lacks.
    """

    config: dict[str, Any]
    tensors: dict[str, mx.array]
    options: Options
    target: TargetFacts | None = None
    warnings: list[str] = field(default_factory=list)
    foreign_names: dict[str, str] = field(default_factory=dict)
    inverse: list[tuple[str, str]] = field(default_factory=list)

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
            _refuse(keys[0], "a whole number", value)
        return value

    def number(self, *keys: str, default: float) -> float:
        value = self.find(*keys)
        if value is None:
            return default
        if type(value) not in (int, float):
            _refuse(keys[0], "a number", value)
        return float(value)

    def flag(self, *keys: str) -> bool | None:
        value = self.find(*keys)
        if value is not None and type(value) is not bool:
            _refuse(keys[0], "true or false", value)
        return value

    def rename(
        self,
        rules: list[tuple[str, str]],
        inverse: list[tuple[str, str]],
        drop: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """Give tensors their canonical names, by regular expressions in order, and drop some.

        Tables of rotary positions are dropped; they are computed.

        Raises:
            CheckpointRefused: two tensors come to have one name.
        """
        self.inverse = inverse
        renamed: dict[str, mx.array] = {}
        for foreign, tensor in self.tensors.items():
            name = foreign
            for pattern, replacement in rules:
                name = re.sub(pattern, replacement, name)
            if name.endswith("rotary_emb.inv_freq") or drop(name):
                continue
            if name in renamed:
                raise CheckpointRefused(
                    f"the tensors {self.foreign_names[name]} and {foreign} are both {name}"
                )
            renamed[name] = tensor
            self.foreign_names[name] = foreign
        self.tensors = renamed

    def own_name(self, name: str) -> str:
        """A tensor's name in the file; of a missing one, the name that the dialect has for it."""
        if name in self.foreign_names:
            return self.foreign_names[name]
        for pattern, replacement in self.inverse:
            name = re.sub(pattern, replacement, name)
        return name

    def has(self, *ends: str) -> bool:
        """Whether a tensor's name ends so."""
        return any(name.endswith(ends) for name in self.tensors)

    def matrix(self, name: str) -> tuple[int, int]:
        """Shape of a tensor that must have two dimensions."""
        if name not in self.tensors:
            raise CheckpointRefused(f"the checkpoint has no tensor {name}")
        shape = self.tensors[name].shape
        if len(shape) != 2:
            raise CheckpointRefused(f"{name} has the shape {list(shape)}, but must be a matrix")
        return shape[0], shape[1]

    def common(self, *places: tuple[str, int], says: tuple[int, ...] = ()) -> int:
        """The size that most tensors have, so that it is the odd one out that is refused.

        Args:
            places: ends of tensors' names, each with the axis that has the size.
            says: what else says it, such as the configuration; counts like a tensor; 0: nothing.
        """
        sizes = [
            tensor.shape[axis]
            for end, axis in places
            for name, tensor in self.tensors.items()
            if name.endswith(end) and tensor.ndim > axis
        ]
        if not sizes:
            first = places[0][0]
            raise CheckpointRefused(
                f"the checkpoint has no tensor {'layers.0' if first[0] == '.' else ''}{first}"
            )
        return Counter([*filter(None, says), *sizes]).most_common(1)[0][0]

    def hidden_size(self) -> int:
        return self.common(
            (".input_layernorm.weight", 0),
            (".post_attention_layernorm.weight", 0),
            says=(self.integer("hidden_size", default=0),),
        )

    def intermediate_size(self, part: str = ".mlp") -> int:
        gate, up, down = (f"{part}.{name}_proj.weight" for name in ("gate", "up", "down"))
        return self.common((gate, 0), (up, 0), (down, 1))

    def target_layers(self, declared: Any) -> int | None:
        """How many layers the target has, by itself or by the configuration.

        Raises:
            DrafterMismatch: they differ.
        """
        said = declared if type(declared) is int else None
        known = self.target.num_layers if self.target else None
        if said and known and said != known:
            raise DrafterMismatch(
                f"the drafter was made for a target of {said} layers, but this target has {known}"
            )
        return known or said

    def num_layers(self) -> int:
        """Layers by tensor names; configurations are wrong about it in the wild."""
        found = {int(m[1]) for name in self.tensors if (m := re.match(r"layers\.(\d+)\.", name))}
        if found != set(range(len(found))) or not found:
            raise CheckpointRefused(
                f"layers are numbered {sorted(found)}, but must be 0, 1, 2, … without gaps"
            )
        return len(found)

    def attention(self, hidden: int, *, gated: bool = False) -> tuple[int, int, int]:
        """Heads, key/value heads and head_dim, by shapes before configuration."""
        said = self.integer("num_attention_heads", default=0)
        dims = self.integer("head_dim", default=hidden // said if said > 0 else 0)
        query_rows = self.common((".self_attn.q_proj.weight", 0)) // (2 if gated else 1)
        rows = self.common((".self_attn.o_proj.weight", 1), says=(query_rows, said * dims))
        key_rows = self.common(
            (".self_attn.k_proj.weight", 0),
            (".self_attn.v_proj.weight", 0),
            says=(self.integer("num_key_value_heads", default=said) * dims,),
        )
        if self.has(*_HEAD_NORMS):
            head_dim = self.common(*((norm, 0) for norm in _HEAD_NORMS), says=(dims,))
        else:
            head_dim = rows // said if said > 0 else dims
        if head_dim < 1 or rows % head_dim or key_rows % head_dim:
            raise CheckpointRefused(
                f"q_proj and k_proj of layer 0 have {rows} and {key_rows} rows, which are no "
                f"multiples of head_dim {head_dim} (num_attention_heads is {said})"
            )
        if dims != head_dim and self.find("head_dim") is not None:
            self.warnings.append(
                f"head_dim is {dims} in config.json, but {head_dim} by the tensors"
            )
        return rows // head_dim, key_rows // head_dim, head_dim

    def rope(
        self,
        head_dim: int,
        *,
        scaled: bool = True,
        theta: float | None = None,
        interleaved: bool = False,
    ) -> RopeConfig:
        """Rotary positions; theta is kept in one of three places."""
        parts: list[dict[str, Any]] = [
            part
            for holder in (self.geometry, self.config)
            for key in ("rope_parameters", "rope_scaling")
            if isinstance(part := holder.get(key), dict)
        ]
        if theta is None:
            theta = self._rope_number("rope_theta", parts)
            if theta is None:
                theta = 10000.0
                self.warnings.append("rope_theta is not given; 10000 is assumed")
        partial = self._rope_number("partial_rotary_factor", parts)
        neox = self.flag("rope_is_neox_style")
        return RopeConfig(
            theta=theta,
            dims=head_dim if partial is None else int(head_dim * partial),
            traditional=interleaved or neox is False,
            scaling=_scaling(parts) if scaled else None,
            max_position_embeddings=self.integer("max_position_embeddings", default=0) or None,
        )

    def _rope_number(self, key: str, parts: list[dict[str, Any]]) -> float | None:
        for part in (self.config, self.nested, self.geometry, *parts):
            value = part.get(key)
            if value is not None:
                if type(value) not in (int, float):
                    _refuse(key, "a number", value)
                return float(value)
        return None

    def stack_experts(self) -> None:
        """Experts, one matrix each or fused, to [E, out, in] under `switch_mlp`."""
        experts: dict[str, dict[int, mx.array]] = {}
        for name in list(self.tensors):
            if m := re.match(r"(.*mlp)\.experts\.(\d+)\.(\w+)\.weight$", name):
                stack = experts.setdefault(f"{m[1]}.switch_mlp.{m[3]}.weight", {})
                stack[int(m[2])] = self.tensors.pop(name)
            elif m := re.match(r"(.*mlp)\.experts_(\w+)$", name):
                # AngelSpec fuses experts as [E, in, out].
                fused = self._fused(name)
                self._keep(f"{m[1]}.switch_mlp.{m[2]}.weight", mx.swapaxes(fused, 1, 2), name)
            elif m := re.match(r"(.*mlp)\.experts\.gate_up_proj$", name):
                gate, up = mx.split(self._fused(name), 2, axis=1)  # [E, 2I, D]
                self._keep(f"{m[1]}.switch_mlp.gate_proj.weight", gate, name)
                self._keep(f"{m[1]}.switch_mlp.up_proj.weight", up, name)
            elif m := re.match(r"(.*mlp)\.experts\.down_proj$", name):
                self._keep(f"{m[1]}.switch_mlp.down_proj.weight", self._fused(name), name)
        count = max((max(stack) + 1 for stack in experts.values()), default=0)
        for name, stack in experts.items():
            usual = Counter((array.shape, str(array.dtype)) for array in stack.values())
            for index in range(count):
                # Canonical names of single experts lead back to the file's.
                single = name.replace("switch_mlp", f"experts.{index}")
                if index not in stack:
                    raise CheckpointRefused(f"the checkpoint has no tensor {single}")
                found = (stack[index].shape, str(stack[index].dtype))
                if found != usual.most_common(1)[0][0]:
                    raise CheckpointRefused(
                        f"{single} differs from the other experts in shape or type: "
                        f"{list(found[0])} {found[1]}"
                    )
            first = self.own_name(name.replace("switch_mlp", "experts.0"))
            self._keep(name, mx.stack([stack[index] for index in range(count)]), first)

    def _fused(self, name: str) -> mx.array:
        """Takes a tensor with an axis for experts, [E, .., ..], whose second axis is even."""
        fused = self.tensors.pop(name)
        if fused.ndim != 3 or ("gate_up" in name and fused.shape[1] % 2):
            raise CheckpointRefused(
                f"{name} has the shape {list(fused.shape)}, not [experts, .., ..]"
            )
        return fused

    def _keep(self, name: str, tensor: mx.array, source: str) -> None:
        self.tensors[name] = tensor
        self.foreign_names[name] = self.own_name(source)


def _refuse(key: str, what: str, value: Any) -> NoReturn:
    raise CheckpointRefused(f"config.json: {key} must be {what}, not {str(value)[:80]!r}")


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
        _refuse(key, "a list of layer numbers", value)
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
