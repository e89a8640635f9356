"""What DSpark and DFly put after the backbone, so that a draft knows the one before it."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import swiglu

from localspec.models.config import ConfidenceConfig, DrafterConfig, MarkovConfig


class MarkovHead(nn.Module):
    """A bias on the logits by the previous token, through rank-r tables (DSpark).

    With e = W1[previous] and h the slot's state, the bias is W2 of e (vanilla), of
    sigmoid(G[h; e]) * e (gated), or of tanh(o) (rnn), where (g, c, o) = J[s; e; h] and the memory
    goes on as s <- sigmoid(g) s + (1 - sigmoid(g)) tanh(c). After deepseek-ai/DeepSpec
    `modeling/dspark/markov_head.py`.
    """

    def __init__(self, config: DrafterConfig, markov: MarkovConfig) -> None:
        super().__init__()
        rank, size = markov.rank, config.hidden_size
        self.kind = markov.kind
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.draft_vocab_size, bias=False)
        if markov.kind == "gated":
            self.gate_proj = nn.Linear(size + rank, rank)
        elif markov.kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + size, 3 * rank)

    def __call__(
        self, hidden: mx.array, embedding: mx.array, memory: mx.array | None
    ) -> tuple[mx.array, mx.array | None]:
        """One slot: state [B, D], W1[previous] [B, r], memory [B, r] (None: zero, or unused).

        Returns:
            The bias [B, Vd], and the memory for the next slot.
        """
        if self.kind == "vanilla":
            return self.markov_w2(embedding), None
        if self.kind == "gated":
            gate = mx.sigmoid(self.gate_proj(mx.concatenate([hidden, embedding], axis=-1)))
            return self.markov_w2(gate * embedding), None
        memory = mx.zeros_like(embedding) if memory is None else memory
        joint = self.joint_proj(mx.concatenate([memory, embedding, hidden], axis=-1))
        gate, candidate, out = mx.split(joint, 3, axis=-1)
        gate = mx.sigmoid(gate)
        memory = gate * memory + (1 - gate) * mx.tanh(candidate)
        return self.markov_w2(mx.tanh(out)), memory


class ConfidenceHead(nn.Module):
    """How likely the target accepts a draft, before it is drawn: sigmoid(w [h; e] + b) (DSpark)."""

    def __init__(self, config: DrafterConfig, confidence: ConfidenceConfig) -> None:
        super().__init__()
        rank = config.block.markov.rank if config.block and config.block.markov else 0
        self.with_markov = confidence.with_markov
        size = config.hidden_size + (rank if confidence.with_markov else 0)
        self.proj = nn.Linear(size, 1, bias=confidence.bias)

    def __call__(self, hidden: mx.array, embedding: mx.array | None) -> mx.array:
        """One slot: state [B, D], W1[previous] [B, r] -> [B], float32."""
        features = [hidden, embedding] if self.with_markov and embedding is not None else [hidden]
        logit = self.proj(mx.concatenate(features, axis=-1).astype(mx.float32))
        return mx.sigmoid(logit[:, 0])


class HiddenCorrection(nn.Module):
    """Adds to a slot's state what the previous token says about it (DFly).

    h + MLP([norm(h); norm(E[previous])]); after Tencent/AngelSpec `models/draft/dfly.py`.
    """

    def __init__(self, config: DrafterConfig, intermediate_size: int) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.hidden_norm = nn.RMSNorm(size, eps=eps)
        self.embed_norm = nn.RMSNorm(size, eps=eps)
        self.gate_proj = nn.Linear(2 * size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(2 * size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, size, bias=False)

    def __call__(self, hidden: mx.array, embedding: mx.array) -> mx.array:
        """State after the final norm and raw embedding, [B, D] each -> [B, D]."""
        both = [self.hidden_norm(hidden), self.embed_norm(embedding)]
        features = mx.concatenate(both, axis=-1)
        return hidden + self.down_proj(swiglu(self.gate_proj(features), self.up_proj(features)))
