"""The training pass of DFlash, DFlare, DSpark and DFly: many blocks of a sequence at once.

A block looks at the context before its anchor and at itself, as in drafting
(`localspec.models.block`), but here every sequence has many, and the context's keys and values are
computed once for all of them.
"""

from __future__ import annotations

import mlx.core as mx

from localspec.models import dfly, dspark
from localspec.models.block import BlockDrafter
from localspec.models.layers import DecoderLayer
from localspec.train.batches import Batch
from localspec.train.losses import draft_loss
from localspec.train.vocabulary import Vocabulary

_CONFIDENCE_WEIGHT = 1.0


def block_loss(
    drafter: BlockDrafter, batch: Batch, vocabulary: Vocabulary, decay: float
) -> tuple[mx.array, mx.array]:
    """The loss of all drafts of all blocks, and the agreement of the first ones.

    Draft k of a block counts exp(-(k - 1) / decay), for it matters only where the ones before it
    stand (DFlash, arXiv 2602.06036).

    Returns:
        The loss, and the share of first drafts that are the target's likeliest token; scalars.
    """
    num_drafts = drafter.max_width
    hidden = block_states(drafter, batch)  # [B, A, w, D]
    at = batch.anchors[..., None] + mx.arange(num_drafts)  # [B, A, w]: the position before a draft
    there = at + 1 < batch.lengths[:, None, None]
    at = mx.minimum(at, batch.tokens.shape[1] - 2)
    flat = at.reshape(at.shape[0], -1)
    previous = mx.take_along_axis(batch.tokens, flat, axis=1).reshape(at.shape)
    labels = vocabulary.index[mx.take_along_axis(batch.tokens, flat + 1, axis=1)].reshape(-1)
    teacher = vocabulary.logits(rows_at(batch.final, flat))  # [N, K]
    logits, confidence = block_logits(drafter, hidden, previous, vocabulary)
    weights = mx.where(there, mx.exp(-mx.arange(num_drafts) / decay), 0.0)
    loss, _, acceptance = draft_loss(logits, teacher, labels, weights.reshape(-1))
    if confidence is not None:
        # The head learns the very chance that a draft stands (DeepSpec).
        wanted = acceptance.reshape(confidence.shape)
        error = -(wanted * mx.log(confidence + 1e-6) + (1 - wanted) * mx.log(1 - confidence + 1e-6))
        loss = loss + _CONFIDENCE_WEIGHT * (error * weights).sum() / weights.sum()
    first = mx.argmax(logits, axis=-1) == mx.argmax(teacher, axis=-1)
    first = first.reshape(at.shape)[..., 0]
    agreement = (first * there[..., 0]).sum() / mx.maximum(there[..., 0].sum(), 1)
    return loss, mx.stop_gradient(agreement)


def block_states(drafter: BlockDrafter, batch: Batch) -> mx.array:
    """States after the final norm of the predicting slots: [B, A, w, D]."""
    num_rows, num_anchors = batch.anchors.shape
    first = int(drafter.block.layout == "anchor_slot_unused")
    num_slots = first + drafter.max_width
    anchor_tokens = mx.take_along_axis(batch.tokens, batch.anchors, axis=1)
    masks = mx.full(
        (num_rows, num_anchors, num_slots - 1), drafter.block.mask_token_id, dtype=mx.int32
    )
    x = drafter.scaled_embed(mx.concatenate([anchor_tokens[..., None], masks], axis=-1))
    contexts = drafter.contexts(batch.taps)
    for layer, context in zip(drafter.layers, contexts, strict=True):
        x = _layer(layer, x, context, batch.anchors)
    states: mx.array = drafter.norm(x[:, :, first:])
    return states


def _layer(layer: DecoderLayer, x: mx.array, context: mx.array, anchors: mx.array) -> mx.array:
    """Blocks [B, A, s, D] look at the context [B, S, Dc] before their anchors, and at themselves."""
    num_rows, num_anchors, num_slots, size = x.shape
    attention = layer.self_attn
    blocks = layer.input_layernorm(x).reshape(-1, num_slots, size)
    offsets = anchors.reshape(-1)
    queries, gate = attention.queries(blocks, offsets)  # [B*A, H, s, hd]
    own_keys, own_values = attention.keys_values(blocks, offsets)  # [B*A, Hkv, s, hd]
    keys, values = attention.context_keys_values(context, 0)  # [B, Hkv, S, hd]
    heads, groups = keys.shape[1], attention.num_heads // keys.shape[1]
    grouped = queries.reshape(num_rows, num_anchors, heads, groups, num_slots, -1) * attention.scale
    # To the context: all queries of a sequence in one product.
    wide = grouped.transpose(0, 2, 1, 3, 4, 5).reshape(num_rows, heads, -1, attention.head_dim)
    scores = (wide @ keys.swapaxes(-1, -2)).reshape(
        num_rows, heads, num_anchors, groups * num_slots, -1
    )
    seen = mx.arange(keys.shape[2]) < anchors[..., None]  # [B, A, S]
    scores = mx.where(seen[:, None, :, None], scores, -mx.inf)
    own = grouped.reshape(num_rows * num_anchors, heads, groups * num_slots, -1)
    own_scores = (own @ own_keys.swapaxes(-1, -2)).reshape(
        num_rows, num_anchors, heads, groups * num_slots, num_slots
    )
    both = mx.concatenate([scores, own_scores.swapaxes(1, 2)], axis=-1)
    shares = mx.softmax(both, axis=-1)
    from_context, from_own = mx.split(shares, [keys.shape[2]], axis=-1)
    out = (from_context.reshape(num_rows, heads, -1, keys.shape[2]) @ values).reshape(
        num_rows, heads, num_anchors, groups, num_slots, -1
    )
    own_out = from_own.swapaxes(1, 2).reshape(-1, heads, groups * num_slots, num_slots) @ own_values
    own_out = own_out.reshape(num_rows, num_anchors, heads, groups, num_slots, -1)
    out = out.transpose(0, 2, 4, 1, 3, 5) + own_out.transpose(0, 1, 4, 2, 3, 5)
    out = out.reshape(num_rows * num_anchors, num_slots, -1)
    x = x + attention.output(out, gate).reshape(x.shape)
    return x + layer.mlp(layer.post_attention_layernorm(x))


def block_logits(
    drafter: BlockDrafter, hidden: mx.array, previous: mx.array, vocabulary: Vocabulary
) -> tuple[mx.array, mx.array | None]:
    """Logits [N, K] after the head, fed the true tokens before; confidence [B, A, w] if any."""
    size = hidden.shape[-1]
    if isinstance(drafter, dfly.Model):
        embeddings = drafter.embed(previous).reshape(-1, size)
        corrected = drafter.hidden_correction(hidden.reshape(-1, size), embeddings)
        return vocabulary.logits(corrected), None
    logits = vocabulary.logits(hidden.reshape(-1, size))
    if not isinstance(drafter, dspark.Model):
        return logits, None
    markov = drafter.markov_head
    embeddings = markov.markov_w1(previous)
    logits = logits + embeddings.reshape(-1, embeddings.shape[-1]) @ (
        markov.markov_w2.weight[vocabulary.ids].T
    )
    # The confidence is learnt from the backbone, which it must not bend.
    features = mx.stop_gradient(hidden.reshape(-1, size))
    confidence = drafter.confidence_head(
        features, mx.stop_gradient(embeddings.reshape(-1, embeddings.shape[-1]))
    )
    return logits, confidence.reshape(previous.shape)


def rows_at(states: mx.array, at: mx.array) -> mx.array:
    """Rows of states [B, S, D] at positions [B, n] -> [B*n, D]."""
    offsets = mx.arange(at.shape[0])[:, None] * states.shape[1]
    return states.reshape(-1, states.shape[-1])[(at + offsets).reshape(-1)]
