"""The layers that the six drafters are made of: attention over cached context, MLPs, and the cache.

Knows nothing of drafting. Attention takes keys and values from its caller, so one class serves a
block that looks at its context, a chain that looks back, and queries for fewer rows than there are.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.mla import MultiLinear
from mlx_lm.models.rope_utils import apply_yarn_mscale, initialize_rope
from mlx_lm.models.switch_layers import SwitchGLU

from localspec.errors import CheckpointRefused
from localspec.models.config import DrafterConfig, LatentConfig, MixtureConfig

Mask = mx.array | str | None
"""Which keys a query sees: booleans [n, keys]; "causal": up to its own row; None: all."""

Position = int | mx.array
"""The rotary position of the first row: the same for the whole batch, or [B]."""

_STEP = 256
_LATENT_NORM_EPS = 1e-6


class KeyValueCache:
    """Keys and values of committed rows [B, heads, rows, dims], in buffers that grow by steps.

    Args:
        context: rows before the next one that are still seen; older ones are dropped. None: all.
    """

    def __init__(self, context: int | None = None) -> None:
        self.num_rows = 0
        self._context = context
        self._buffers: tuple[mx.array, mx.array] | None = None

    @property
    def arrays(self) -> list[mx.array]:
        return list(self._buffers or ())

    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Commit rows, and return all that their last one sees."""
        seen = self.extended(keys, values)
        self.num_rows += keys.shape[2]
        return seen

    def extended(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """What the cache would hold with these rows added; the next write takes their place.

        They go into the buffers' spare rows, so nothing is copied but them.
        """
        num_new = keys.shape[2]
        if self._buffers is None or self.num_rows + num_new > self._buffers[0].shape[2]:
            self._buffers = self._grown(keys, values)
        end = self.num_rows + num_new
        for buffer, rows in zip(self._buffers, (keys, values), strict=True):
            buffer[:, :, self.num_rows : end] = rows
        start = self._first_seen()
        return self._buffers[0][:, :, start:end], self._buffers[1][:, :, start:end]

    def crop(self, num_rows: int) -> None:
        """Forget rows after the first `num_rows`; for caches that keep all rows."""
        assert self._context is None
        assert num_rows <= self.num_rows
        self.num_rows = num_rows

    def can_fork(self, num_rows: int, num_dropped: int = 0) -> bool:
        """Whether the first rows still hold all that the row after them sees.

        Args:
            num_rows: of those that are here.
            num_dropped: rows that were here before them.
        """
        return not num_dropped or (self._context is not None and num_rows >= self._context)

    def fork(self, num_rows: int) -> KeyValueCache:
        """A cache of its own with the first rows; this one stays as it is."""
        assert num_rows <= self.num_rows
        forked = KeyValueCache(self._context)
        forked.num_rows = num_rows
        if self._buffers is not None:
            keys, values = (buffer[:, :, :num_rows] for buffer in self._buffers)
            forked._buffers = keys, values
        return forked

    def _first_seen(self) -> int:
        return 0 if self._context is None else max(0, self.num_rows - self._context)

    def _grown(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        start, end = self._first_seen(), self.num_rows
        self.num_rows = end - start
        needed = self.num_rows + keys.shape[2]
        spare = -(-needed // _STEP) * _STEP - self.num_rows
        old = self._buffers or (keys[:, :, :0], values[:, :, :0])

        def grow(buffer: mx.array) -> mx.array:
            batch, heads, _, dims = buffer.shape
            room = mx.zeros((batch, heads, spare, dims), buffer.dtype)
            return mx.concatenate([buffer[:, :, start:end], room], axis=2)

        return grow(old[0]), grow(old[1])


class Attention(nn.Module):
    """Grouped-query attention with rotary positions.

    Args:
        input_size: of queries', keys' and values' input; None: the hidden size.
        context_size: context keys and values have projections of their own, from this size.
        gated: a sigmoid gate for the output, projected with the query (Qwen3-Next).
    """

    def __init__(
        self,
        config: DrafterConfig,
        input_size: int | None = None,
        context_size: int | None = None,
        gated: bool = False,
    ) -> None:
        super().__init__()
        size = input_size or config.hidden_size
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        query_size = config.num_heads * config.head_dim
        key_size = config.num_kv_heads * config.head_dim
        self.scale = config.head_dim**-0.5
        self.gated = gated
        self.q_proj = nn.Linear(size, query_size * (1 + gated), bias=config.qkv_bias)
        self.k_proj = nn.Linear(size, key_size, bias=config.qkv_bias)
        self.v_proj = nn.Linear(size, key_size, bias=config.qkv_bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=config.o_bias)
        self.qk_norm = config.qk_norm
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.own_context = context_size is not None
        if context_size is not None:
            self.k_proj_target = nn.Linear(context_size, key_size, bias=config.qkv_bias)
            self.v_proj_target = nn.Linear(context_size, key_size, bias=config.qkv_bias)
        self.rope = rope(config)

    def keys_values(self, x: mx.array, position: Position) -> tuple[mx.array, mx.array]:
        """Of rows [B, n, input] at positions from `position`: each [B, Hkv, n, hd]."""
        return self._heads(self.k_proj(x), self.v_proj(x), position)

    def context_keys_values(
        self, context: mx.array, position: Position
    ) -> tuple[mx.array, mx.array]:
        """Of context rows [B, n, context], likewise."""
        if not self.own_context:
            return self.keys_values(context, position)
        return self._heads(self.k_proj_target(context), self.v_proj_target(context), position)

    def _heads(
        self, keys: mx.array, values: mx.array, position: Position
    ) -> tuple[mx.array, mx.array]:
        batch, num_rows, _ = keys.shape
        keys = keys.reshape(batch, num_rows, -1, self.head_dim)
        if self.qk_norm:
            keys = self.k_norm(keys)
        values = values.reshape(batch, num_rows, -1, self.head_dim).transpose(0, 2, 1, 3)
        return self.rope(keys.transpose(0, 2, 1, 3), offset=position), values

    def __call__(
        self, x: mx.array, position: Position, keys: mx.array, values: mx.array, mask: Mask = None
    ) -> mx.array:
        """Rows [B, n, input] at positions from `position` look at keys and values -> [B, n, D]."""
        batch, num_rows, _ = x.shape
        queries, gate = self.queries(x, position)
        out = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self.scale, mask=mask
        )
        return self.output(out.transpose(0, 2, 1, 3).reshape(batch, num_rows, -1), gate)

    def queries(self, x: mx.array, position: Position) -> tuple[mx.array, mx.array | None]:
        """Of rows [B, n, input], likewise: [B, H, n, hd]; and the gate [B, n, H*hd], if gated."""
        batch, num_rows, _ = x.shape
        queries, gate = self.q_proj(x).reshape(batch, num_rows, self.num_heads, -1), None
        if self.gated:
            queries, gate = mx.split(queries, 2, axis=-1)
            gate = gate.reshape(batch, num_rows, -1)
        if self.qk_norm:
            queries = self.q_norm(queries)
        return self.rope(queries.transpose(0, 2, 1, 3), offset=position), gate

    def output(self, mixed: mx.array, gate: mx.array | None) -> mx.array:
        """Mixed values [.., H*hd] -> [.., D]."""
        return self.o_proj(mixed if gate is None else mixed * mx.sigmoid(gate))


class LatentAttention(nn.Module):
    """Multi-head latent attention in its absorbed form (DeepSeek-V2, arXiv 2405.04434).

    The cache holds one head: keys [latent; rotated part], values the latent.
    """

    def __init__(self, config: DrafterConfig, latent: LatentConfig, input_size: int | None) -> None:
        super().__init__()
        size = input_size or config.hidden_size
        self.num_heads = config.num_heads
        self.kv_rank, self.unrotated_dim = latent.kv_rank, latent.unrotated_dim
        query_dim = latent.unrotated_dim + config.rope.dims
        self.scale = apply_yarn_mscale(query_dim**-0.5, config.rope.scaling)
        query_size, bias = config.num_heads * query_dim, config.qkv_bias
        self.q_rank = latent.q_rank
        if latent.q_rank is None:
            self.q_proj = nn.Linear(size, query_size, bias=False)
        else:
            self.q_a_proj = nn.Linear(size, latent.q_rank, bias=bias)
            self.q_a_layernorm = nn.RMSNorm(latent.q_rank, eps=_LATENT_NORM_EPS)
            self.q_b_proj = nn.Linear(latent.q_rank, query_size, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(size, latent.kv_rank + config.rope.dims, bias=bias)
        self.kv_a_layernorm = nn.RMSNorm(latent.kv_rank, eps=_LATENT_NORM_EPS)
        self.embed_q = MultiLinear(latent.unrotated_dim, latent.kv_rank, config.num_heads)
        self.unembed_out = MultiLinear(latent.kv_rank, latent.value_dim, config.num_heads)
        self.o_proj = nn.Linear(
            config.num_heads * latent.value_dim, config.hidden_size, bias=config.o_bias
        )
        self.rope = rope(config)

    def keys_values(self, x: mx.array, position: int) -> tuple[mx.array, mx.array]:
        """Of rows [B, n, input]: keys [B, 1, n, kv_rank + rope.dims], values [B, 1, n, kv_rank]."""
        latent, rotated = mx.split(self.kv_a_proj_with_mqa(x)[:, None], [self.kv_rank], axis=-1)
        latent = self.kv_a_layernorm(latent)
        return mx.concatenate([latent, self.rope(rotated, offset=position)], axis=-1), latent

    def __call__(
        self, x: mx.array, position: int, keys: mx.array, values: mx.array, mask: Mask = None
    ) -> mx.array:
        """As `Attention`."""
        batch, num_rows, _ = x.shape
        if self.q_rank is None:
            queries = self.q_proj(x)
        else:
            queries = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        queries = queries.reshape(batch, num_rows, self.num_heads, -1).transpose(0, 2, 1, 3)
        plain, rotated = mx.split(queries, [self.unrotated_dim], axis=-1)
        queries = mx.concatenate(
            [self.embed_q(plain), self.rope(rotated, offset=position)], axis=-1
        )
        out = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self.scale, mask=mask
        )
        out = self.unembed_out(out)  # [B, H, n, value]
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(batch, num_rows, -1))


class SwiGLU(nn.Module):
    """The gated MLP: [.., input] -> [.., D]."""

    def __init__(self, size: int, intermediate_size: int, input_size: int | None = None) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(input_size or size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(input_size or size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class Mixture(nn.Module):
    """A mixture of experts, routed in float32.

    Sigmoid scores with a bias for the choice alone and choice by groups are DeepSeek-V3's (arXiv
    2412.19437); softmax scores and the gated shared expert are Qwen3-Next's.
    """

    def __init__(self, size: int, config: MixtureConfig) -> None:
        super().__init__()
        self.config = config
        self.gate = nn.Linear(size, config.num_experts, bias=False)
        if config.selection_bias:
            self.expert_bias = mx.zeros((config.num_experts,))
        self.switch_mlp = SwitchGLU(size, config.intermediate_size, config.num_experts)
        if config.shared_size is not None:
            self.shared_expert = SwiGLU(size, config.shared_size)
            if config.shared_gate:
                self.shared_expert_gate = nn.Linear(size, 1, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        chosen, weights = self._route(x)
        outs: mx.array = self.switch_mlp(x, chosen)  # [.., k, D]
        out = (outs * weights[..., None].astype(x.dtype)).sum(axis=-2)
        if self.config.shared_size is not None:
            shared = self.shared_expert(x)
            if self.config.shared_gate:
                shared = shared * mx.sigmoid(self.shared_expert_gate(x))
            out = out + shared
        return out

    def _route(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """Experts [.., k] and their weights [.., k]."""
        config = self.config
        logits = self.gate(x.astype(mx.float32))
        if config.router == "sigmoid":
            scores = mx.sigmoid(logits)
        else:
            scores = mx.softmax(logits, axis=-1, precise=True)
        preference = scores + self.expert_bias if config.selection_bias else scores
        if config.num_groups_kept < config.num_groups:
            groups = preference.reshape(*preference.shape[:-1], config.num_groups, -1)
            best_two = mx.topk(groups, min(2, groups.shape[-1]), axis=-1).sum(axis=-1)  # [.., G]
            least = mx.topk(best_two, config.num_groups_kept, axis=-1).min(axis=-1, keepdims=True)
            groups = mx.where((best_two >= least)[..., None], groups, -mx.inf)
            preference = groups.reshape(preference.shape)
        chosen = mx.argpartition(-preference, config.num_chosen - 1, axis=-1)
        chosen = chosen[..., : config.num_chosen]
        weights = mx.take_along_axis(scores, chosen, axis=-1)
        if config.normalize:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        return chosen, weights * config.scale


class DecoderLayer(nn.Module):
    """Attention and MLP with a norm before each.

    The first norm is the caller's to apply, for EAGLE-3's attention reads more than the residual.
    """

    def __init__(
        self, config: DrafterConfig, attention: nn.Module, mixture: MixtureConfig | None = None
    ) -> None:
        super().__init__()
        self.self_attn = attention
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp: SwiGLU | Mixture = (
            SwiGLU(config.hidden_size, config.intermediate_size)
            if mixture is None
            else Mixture(config.hidden_size, mixture)
        )

    def __call__(
        self,
        normed: mx.array,
        residual: mx.array,
        position: int,
        keys: mx.array,
        values: mx.array,
        mask: Mask = None,
    ) -> mx.array:
        """Attention's input [B, n, input] and the residual stream [B, n, D] -> [B, n, D]."""
        x: mx.array = residual + self.self_attn(normed, position, keys, values, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


def rope(config: DrafterConfig) -> nn.Module:
    """Rotary positions with mlx-lm's scalings; called with [B, heads, n, dims] and `offset`.

    Raises:
        CheckpointRefused: a scaling that mlx-lm does not know, or that lacks a value.
    """
    settings = config.rope
    try:
        module: nn.Module = initialize_rope(
            settings.dims,
            settings.theta,
            settings.traditional,
            settings.scaling,
            settings.max_position_embeddings,
        )
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise CheckpointRefused(
            f"rope.scaling {settings.scaling} is not supported: {error!r}"
        ) from error
    return module
