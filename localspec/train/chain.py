"""The training pass of EAGLE-3 and MTP: the chain unrolled, each step on what the last one gave.

Training-time test (EAGLE-3, arXiv 2503.01840; AngelSpec, arXiv 2607.25852): step 0 reads the target's
states; step k reads the layer's own output of step k - 1 one position back, and sees the target's
pairs up to k positions back and then its own earlier steps, as in drafting.
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

from localspec.models.chain import ChainDrafter
from localspec.train.batches import Batch
from localspec.train.block import rows_at
from localspec.train.losses import draft_loss
from localspec.train.vocabulary import Vocabulary

STEP_DECAY = 0.8


def chain_loss(
    drafter: ChainDrafter, batch: Batch, vocabulary: Vocabulary, num_steps: int
) -> tuple[mx.array, mx.array]:
    """The loss of all steps at all positions of the answers; step k counts 0.8^k.

    Returns:
        The loss, and the share of first drafts that are the target's likeliest token; scalars.
    """
    # From position p on, the target says token p+1; pair p-1 of step 0 drafts it.
    at = mx.clip(batch.chained, 1, batch.tokens.shape[1] - 2)
    teacher = vocabulary.logits(rows_at(batch.final, at))
    labels = vocabulary.index[mx.take_along_axis(batch.tokens, at + 1, axis=1)].reshape(-1)
    loss, agreement, total = mx.array(0.0), mx.array(0.0), 0.0
    for step, hidden in enumerate(unrolled(drafter, batch, num_steps)):
        logits = vocabulary_logits(drafter, rows_at(hidden, at - 1), vocabulary)
        # The chain starts at an anchor of the answer, `step` positions before.
        there = batch.chained >= mx.maximum(batch.chained[:, :1], 1) + step
        step_loss, share, _ = draft_loss(
            logits, teacher, labels, there.astype(mx.float32).reshape(-1)
        )
        if step == 0:
            agreement = share
        loss = loss + STEP_DECAY**step * step_loss
        total += STEP_DECAY**step
    return loss / total, agreement


def unrolled(drafter: ChainDrafter, batch: Batch, num_steps: int) -> Iterator[mx.array]:
    """States after the final norm of step 0, 1, …: each [B, S - 2, D], row j for pair j."""
    (layer,) = drafter.layers
    attention = layer.self_attn
    num_pairs = batch.tokens.shape[1] - 2
    embeddings = drafter.scaled_embed(batch.tokens[:, 1 : num_pairs + 1])
    if drafter.chain.zero_first_embedding:
        first = mx.arange(num_pairs)[:, None] == 0
        embeddings = mx.where(first, mx.zeros_like(embeddings), embeddings)
    states = drafter.target_states(batch.taps[:, :num_pairs])
    keys: list[mx.array] = []
    values: list[mx.array] = []
    for _ in range(num_steps):
        normed, residual = drafter.fuse(embeddings, states)
        step_keys, step_values = attention.keys_values(normed, 0)
        keys.append(step_keys)
        values.append(step_values)
        queries, gate = attention.queries(normed, 0)
        mixed = _look_back(queries * attention.scale, keys, values)
        x = residual + attention.output(mixed, gate)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        hidden = drafter.norm(x)
        yield hidden
        states = _back(hidden if drafter.chain.feed_normed else x, 1)


def vocabulary_logits(drafter: ChainDrafter, hidden: mx.array, vocabulary: Vocabulary) -> mx.array:
    """States after the final norm [N, D] -> [N, K]; a reduced head's rows are the vocabulary."""
    if drafter.config.own_head:
        return drafter.logits(hidden)
    return vocabulary.logits(hidden)


def _back(rows: mx.array, by: int) -> mx.array:
    """Row j moves to j + by along the axis before the last; zeros come in."""
    if not by:
        return rows
    zeros = mx.zeros((*rows.shape[:-2], by, rows.shape[-1]), dtype=rows.dtype)
    return mx.concatenate([zeros, rows[..., :-by, :]], axis=-2)


def _look_back(queries: mx.array, keys: list[mx.array], values: list[mx.array]) -> mx.array:
    """Attention of step k = len(keys) - 1: scaled queries [B, H, n, hd] -> [B, n, H*hd].

    A row j sees step 0's rows up to j - k, and of step m = 1..k row j - k + m.
    """
    batch, num_heads, num_rows, dims = queries.shape
    heads = keys[0].shape[1]
    step = len(keys) - 1
    grouped = queries.reshape(batch, heads, -1, num_rows, dims)
    scores = grouped @ keys[0][:, :, None].swapaxes(-1, -2)  # [B, Hkv, G, n, n]
    rows = mx.arange(num_rows)
    seen = rows <= rows[:, None] - step
    # Rows before the chain could have begun see themselves, so that no softmax is empty.
    seen = seen | ((rows[:, None] < step) & (rows == 0))
    parts = [mx.where(seen, scores, -mx.inf)]
    for index in range(1, step + 1):
        shifted = _back(keys[index], step - index)[:, :, None]
        parts.append((grouped * shifted).sum(axis=-1, keepdims=True))
    shares = mx.softmax(mx.concatenate(parts, axis=-1), axis=-1)
    out = shares[..., :num_rows] @ values[0][:, :, None]
    for index in range(1, step + 1):
        share = shares[..., num_rows + index - 1][..., None]
        out = out + share * _back(values[index], step - index)[:, :, None]
    out = out.reshape(batch, num_heads, num_rows, dims)
    return out.transpose(0, 2, 1, 3).reshape(batch, num_rows, -1)
