"""A foreign checkpoint while it is being read: settings by key, tensors by name, and what was assumed.

Knows no dialect; the files of the dialects ask it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

import mlx.core as mx

from localspec.errors import CheckpointRefused, DrafterMismatch
from localspec.models.config import DrafterConfig, Layout, RopeConfig

_HEAD_NORMS = (".self_attn.q_norm.weight", ".self_attn.k_norm.weight")

TapReading = Literal["outputs", "inputs"]


def layers_part(config: dict[str, Any]) -> dict[str, Any]:
    """The part of config.json that describes the layers."""
    for key in ("transformer_layer_config", "text_config"):
        part = config.get(key)
        if isinstance(part, dict):
            return part
    return config


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What a drafter's target is, as far as a checkpoint must fit it; num_layers None: not known."""

    hidden_size: int
    vocab_size: int
    num_layers: int | None = None

    @classmethod
    def of_config(cls, config: dict[str, Any]) -> TargetFacts | None:
        """What a target's config.json says of it; None: not under the usual keys."""
        part = layers_part(config)
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
        return layers_part(self.config)

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
        value: int = self._typed(keys, (int,), "a whole number", default)
        return value

    def number(self, *keys: str, default: float) -> float:
        return float(self._typed(keys, (int, float), "a number", default))

    def flag(self, *keys: str) -> bool | None:
        value = self.find(*keys)
        return None if value is None else bool(self._typed(keys, (bool,), "true or false", None))

    def _typed(
        self, keys: tuple[str, ...], kinds: tuple[type, ...], what: str, default: Any
    ) -> Any:
        value = self.find(*keys)
        if value is None and default is not None:
            return default
        if type(value) not in kinds:
            refuse(keys[0], what, value)
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

    def keep(self, name: str, tensor: mx.array, source: str) -> None:
        """Add a tensor made of the one that the file calls as it calls `source`."""
        self.tensors[name] = tensor
        self.foreign_names[name] = self.own_name(source)

    def fused_hidden(self, hidden: int, num_taps: int) -> int:
        """The target's hidden size, which `fc` must take for every tap."""
        given = self.integer("target_hidden_size", default=hidden)
        found, expected = self.matrix("fc.weight"), (hidden, num_taps * given)
        if found != expected:
            raise CheckpointRefused(
                f"fc.weight has the shape {list(found)}, but {num_taps} taps of {given} into "
                f"{hidden} make {list(expected)}"
            )
        return given

    def taps(
        self, places: Iterable[tuple[Any, str, TapReading]], count: int | None
    ) -> tuple[int, ...] | None:
        """Taps as layer outputs, from the first place that names any; None: none does.

        Args:
            places: a value out of config.json, its key, and what that key usually counts.
            count: the target's layers; None: not known.
        """
        for value, key, usual in places:
            if value is None:
                continue
            ids = _layer_ids(value, key)
            chosen = self.options.taps
            if (chosen or usual) == "inputs":
                # speculators appends L for the verifier's last state, which does not feed the drafter.
                ids = [index - 1 for index in ids if index != count]
                width = self.integer("target_hidden_size", default=self.hidden_size())
                fc = self.tensors.get("fc.weight", mx.zeros(1))
                if count is None and fc.shape[1:] == ((len(ids) - 1) * width,):
                    self.warnings.append(f"{key} ends with {ids.pop() + 1}, which fc does not read")
            elif count and not chosen and ids == [2, count // 2, count - 3]:
                self.warnings.append(
                    f"the taps {ids} are those of checkpoints that count layer inputs; outputs are "
                    f"assumed, as {key} usually means (set the reading of taps, or let it be checked)"
                )
            return check_taps(ids, key, count)
        return None

    def drafter(
        self, shape: tuple[int, int, int], rope: RopeConfig, **others: Any
    ) -> DrafterConfig:
        """A configuration: what every family reads alike, and the rest.

        Args:
            shape: heads, key/value heads and head_dim.
            others: fields of `DrafterConfig`, which win.
        """
        heads, kv_heads, head_dim = shape
        self._check_activation()
        self._compare_with_config(heads, kv_heads)
        alike: dict[str, Any] = {
            "hidden_size": self.hidden_size(),
            "num_layers": self.num_layers(),
            "num_heads": heads,
            "num_kv_heads": kv_heads,
            "head_dim": head_dim,
            "rms_norm_eps": self.number("rms_norm_eps", default=1e-6),
            "rope": rope,
            "vocab_size": self.integer("vocab_size"),
            "qk_norm": self.has(".q_norm.weight", ".k_norm.weight"),
            "qkv_bias": self.has(
                ".q_proj.bias", ".k_proj.bias", ".v_proj.bias", "_a_proj.bias", "_mqa.bias"
            ),
            "o_bias": self.has(".o_proj.bias"),
        }
        return DrafterConfig(**alike | others)

    def _check_activation(self) -> None:
        for key in ("hidden_act", "hidden_activation"):
            kind = self.find(key)
            if kind not in (None, "silu", "swish"):
                refuse(key, "silu, the activation that drafters are run with", kind)

    def _compare_with_config(self, heads: int, kv_heads: int) -> None:
        """Tensors win over the configuration; where they differ, the user is told."""
        for key, found in (
            ("hidden_size", self.hidden_size()),
            ("num_attention_heads", heads),
            ("num_key_value_heads", kv_heads),
        ):
            said = self.geometry.get(key)
            if said is not None and (type(said) is not int or said < 1):
                refuse(key, "a whole number from 1 on", said)
            if said is not None and said != found:
                self.warnings.append(f"{key} is {said} in config.json, but {found} by the tensors")
        if self.geometry.get("attention_bias") is True and not self.has(
            ".q_proj.bias", "_mqa.bias"
        ):
            self.warnings.append("attention_bias is true in config.json, but there are no biases")


def refuse(key: str, what: str, value: Any) -> NoReturn:
    raise CheckpointRefused(f"config.json: {key} must be {what}, not {str(value)[:80]!r}")


def _layer_ids(value: Any, key: str) -> list[int]:
    """A list of layer numbers out of config.json."""
    if not isinstance(value, list) or not value or any(type(item) is not int for item in value):
        refuse(key, "a list of layer numbers", value)
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
