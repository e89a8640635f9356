"""What inference needs to know of a drafter: the one configuration, in the one localspec format.

Knows nothing of the dialects that drafters are published in: `localspec.converters` translates
those into this, once, at import. Here every convention is already settled.

The tensors that go with it are listed in `localspec.models.load`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from localspec.errors import CheckpointRefused
from localspec.models.decoding import decode

FORMAT_VERSION = 1
_MAX_SIZE = 2**20
_MAX_VOCAB = 2**24

Architecture = Literal["dflash", "dflare", "dspark", "dfly", "eagle3", "mtp"]
Layout = Literal["anchor_slot_unused", "every_slot_predicts"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary positions.

    Attributes:
        theta: base of the frequencies.
        dims: leading dimensions of a head that turn; head_dim unless partial.
        traditional: neighbours turn together; else half with half (NeoX).
        scaling: as transformers' `rope_scaling`; None: none.
        max_position_embeddings: for the scalings that need it.
    """

    theta: float
    dims: int
    traditional: bool = False
    scaling: dict[str, Any] | None = None
    max_position_embeddings: int | None = None

    def __post_init__(self) -> None:
        _positive(self.theta, "rope.theta")
        _size(self.dims, "rope.dims")
        if self.dims % 2:
            raise CheckpointRefused(f"rope.dims must be even, not {self.dims}")


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """How a layer of a block drafter attends.

    Attributes:
        causal: a slot of the block sees no later slot.
        window: a slot at position q sees a key at k if q - k < window; None: all.
    """

    causal: bool = False
    window: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None:
            _size(self.window, "block.layers.window", _MAX_VOCAB)


@dataclass(frozen=True, slots=True)
class MarkovConfig:
    """DSpark's bias on the logits by the previous token: its kind, and the rank r of its tables."""

    kind: Literal["vanilla", "gated", "rnn"]
    rank: int

    def __post_init__(self) -> None:
        _size(self.rank, "block.markov.rank")


@dataclass(frozen=True, slots=True)
class ConfidenceConfig:
    """DSpark's confidence head: whether it reads the Markov embedding too, and has a bias."""

    with_markov: bool
    bias: bool


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """Of DFlash, DFlare, DSpark and DFly.

    Attributes:
        block_size: slots, the anchor's included.
        layout: `anchor_slot_unused`: slot k predicts token p+k, block_size - 1 drafts;
            `every_slot_predicts`: slot k predicts token p+k+1, block_size drafts.
        mask_token_id: target id whose embedding fills the slots after the anchor.
        layers: one for each draft layer.
        markov, confidence: DSpark's heads.
        correction_size: width of DFly's hidden correction.
    """

    block_size: int
    layout: Layout
    mask_token_id: int
    layers: tuple[LayerConfig, ...]
    markov: MarkovConfig | None = None
    confidence: ConfidenceConfig | None = None
    correction_size: int | None = None

    def __post_init__(self) -> None:
        _size(self.block_size, "block.block_size", 1024)
        if self.num_drafts < 1:
            raise CheckpointRefused(
                f"block.block_size {self.block_size} leaves no slot to draft in"
            )
        if self.correction_size is not None:
            _size(self.correction_size, "block.correction_size")

    @property
    def num_drafts(self) -> int:
        return self.block_size - (self.layout == "anchor_slot_unused")


@dataclass(frozen=True, slots=True)
class MixtureConfig:
    """Experts in place of the MLP.

    Attributes:
        intermediate_size: width of one expert.
        router: what turns router logits into scores.
        selection_bias: `expert_bias` is added to the scores for the choice alone.
        num_groups, num_groups_kept: experts are chosen in the groups whose two best sum highest.
        normalize: scores of the chosen sum to 1.
        scale: on the scores of the chosen.
        shared_size: width of the expert that always runs; None: there is none.
        shared_gate: it is weighed by a sigmoid gate.
    """

    num_experts: int
    num_chosen: int
    intermediate_size: int
    router: Literal["sigmoid", "softmax"]
    selection_bias: bool
    normalize: bool
    scale: float = 1.0
    num_groups: int = 1
    num_groups_kept: int = 1
    shared_size: int | None = None
    shared_gate: bool = False

    def __post_init__(self) -> None:
        for name in ("num_experts", "num_chosen", "intermediate_size"):
            _size(getattr(self, name), f"chain.mixture.{name}")
        for name in ("num_groups", "num_groups_kept"):
            _size(getattr(self, name), f"chain.mixture.{name}")
        _positive(self.scale, "chain.mixture.scale")
        if self.shared_size is not None:
            _size(self.shared_size, "chain.mixture.shared_size")
        if self.num_chosen > self.num_experts or self.num_experts % self.num_groups:
            raise CheckpointRefused(
                f"chain.mixture.num_experts {self.num_experts} does not allow for num_chosen "
                f"{self.num_chosen} and num_groups {self.num_groups}"
            )


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Multi-head latent attention (DeepSeek-V2): ranks, and dimensions of a head's parts."""

    kv_rank: int
    unrotated_dim: int
    value_dim: int
    q_rank: int | None = None

    def __post_init__(self) -> None:
        for name in ("kv_rank", "unrotated_dim", "value_dim"):
            _size(getattr(self, name), f"chain.latent.{name}")
        if self.q_rank is not None:
            _size(self.q_rank, "chain.latent.q_rank")


@dataclass(frozen=True, slots=True)
class ChainConfig:
    """Of EAGLE-3 and MTP.

    Attributes:
        feed_normed: the next step is fed the state after the final norm; else the one before.
        norm_before_residual: EAGLE-3: the residual is the normed hidden state; else the raw one.
        tap_norm: EAGLE-3: a norm for each tap, or one over their concatenation, before fc.
        target_normed: MTP: reads the target's last state after its final norm; else before.
        zero_first_embedding: MTP: the embedding in the pair at position 0 is zero.
        gated_attention: MTP: q_proj holds a sigmoid gate for the attention's output.
        mixture: MTP: experts; None: a dense MLP.
        latent: latent attention; None: grouped-query attention.
    """

    feed_normed: bool
    norm_before_residual: bool = False
    tap_norm: Literal["each", "all"] | None = None
    target_normed: bool = True
    zero_first_embedding: bool = False
    gated_attention: bool = False
    mixture: MixtureConfig | None = None
    latent: LatentConfig | None = None


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    """MLX affine quantisation."""

    bits: int
    group_size: int = 64

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise CheckpointRefused(f"quantization.bits must be 4 or 8, not {self.bits}")
        if self.group_size not in (32, 64, 128):
            raise CheckpointRefused(
                f"quantization.group_size must be 32, 64 or 128, not {self.group_size}"
            )


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """A drafter. Values that contradict each other raise `CheckpointRefused` with their names.

    Attributes:
        target_layers: the number of the target's layers; None: not known, checked at `bind` alone.
        tap_layers: target layers whose outputs it reads, 0-based, -1 the embeddings; empty for MTP.
        draft_vocab_size: rows of the head; less than vocab_size: `d2t` maps them.
        own_embedding, own_head: the checkpoint holds them; else the target's are used.
        embedding_scale: on the embeddings that enter the layers.
        logit_scale: on the logits of a head of its own; the target's head brings its own scale.
        logit_softcap: c in c * tanh(logits / c), likewise.
        block, chain: exactly one, as the architecture has it.
    """

    architecture: Architecture
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    vocab_size: int
    draft_vocab_size: int
    target_hidden_size: int
    tap_layers: tuple[int, ...]
    target_layers: int | None = None
    qk_norm: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    own_embedding: bool = False
    own_head: bool = False
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    block: BlockConfig | None = None
    chain: ChainConfig | None = None
    quantization: QuantizationConfig | None = None
    format_version: int = field(default=FORMAT_VERSION)

    def __post_init__(self) -> None:
        if self.format_version != FORMAT_VERSION:
            raise CheckpointRefused(
                f"format_version is {self.format_version}, but this localspec reads "
                f"{FORMAT_VERSION}; convert the drafter again"
            )
        for name in ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim"):
            _size(getattr(self, name), name)
        for name in ("vocab_size", "draft_vocab_size"):
            _size(getattr(self, name), name, _MAX_VOCAB)
        _size(self.target_hidden_size, "target_hidden_size")
        _size(self.num_layers, "num_layers", 1024)
        _positive(self.rms_norm_eps, "rms_norm_eps")
        for name in ("embedding_scale", "logit_scale"):
            _positive(getattr(self, name), name)
        if self.logit_softcap is not None:
            _positive(self.logit_softcap, "logit_softcap")
        self._check_geometry()
        self._check_taps()
        self._check_architecture()

    @property
    def layout(self) -> str:
        return self.block.layout if self.block else "chain"

    def _check_geometry(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise CheckpointRefused(
                f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.rope.dims > self.head_dim:
            raise CheckpointRefused(f"rope.dims {self.rope.dims} exceeds head_dim {self.head_dim}")
        if self.draft_vocab_size > self.vocab_size:
            raise CheckpointRefused(
                f"draft_vocab_size {self.draft_vocab_size} exceeds vocab_size {self.vocab_size}"
            )
        if self.draft_vocab_size < self.vocab_size and not self.own_head:
            raise CheckpointRefused("a reduced draft_vocab_size needs a head of its own (own_head)")
        same_size = self.hidden_size == self.target_hidden_size
        if not same_size and (
            self.architecture == "mtp"
            or self.architecture == "dfly"
            or not (self.own_embedding and self.own_head)
        ):
            raise CheckpointRefused(
                f"hidden_size {self.hidden_size} differs from target_hidden_size "
                f"{self.target_hidden_size}, so it needs an embedding and a head of its own, and "
                "cannot be MTP or DFly"
            )

    def _check_taps(self) -> None:
        if bool(self.tap_layers) == (self.architecture == "mtp"):
            raise CheckpointRefused(
                f"tap_layers {list(self.tap_layers)} do not suit {self.architecture}"
            )
        if len(set(self.tap_layers)) < len(self.tap_layers) or min(self.tap_layers, default=0) < -1:
            raise CheckpointRefused(f"tap_layers {list(self.tap_layers)} are not distinct layers")
        if self.target_layers is not None:
            _size(self.target_layers, "target_layers")
            check_taps_inside(self.tap_layers, self.target_layers)

    def _check_architecture(self) -> None:
        chained = self.architecture in ("eagle3", "mtp")
        if (self.chain is not None, self.block is not None) != (chained, not chained):
            raise CheckpointRefused(
                f"{self.architecture} needs the key {'chain' if chained else 'block'} and no other"
            )
        if self.chain is not None and self.num_layers != 1:
            raise CheckpointRefused(
                f"num_layers is {self.num_layers}, but {self.architecture} drafters have one layer"
            )
        if self.block is not None:
            if len(self.block.layers) != self.num_layers:
                raise CheckpointRefused(
                    f"block.layers describes {len(self.block.layers)} layers, but num_layers is "
                    f"{self.num_layers}"
                )
            if not 0 <= self.block.mask_token_id < self.vocab_size:
                raise CheckpointRefused(
                    f"mask_token_id {self.block.mask_token_id} is outside the vocabulary of "
                    f"{self.vocab_size} tokens"
                )
            if (self.block.correction_size is not None) != (self.architecture == "dfly"):
                raise CheckpointRefused("block.correction_size is DFly's, and DFly needs it")
            extras = self.block.markov or self.block.confidence
            if bool(extras) != (self.architecture == "dspark"):
                raise CheckpointRefused(
                    "block.markov and block.confidence are DSpark's, which has one"
                )
            confidence = self.block.confidence
            if confidence and confidence.with_markov and not self.block.markov:
                raise CheckpointRefused("block.confidence.with_markov needs block.markov")

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`; every key is there."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Any) -> DrafterConfig:
        """What `to_json` gave, or the same with defaults left out.

        Raises:
            CheckpointRefused: an unknown or missing key, or a value of the wrong type or range.
        """
        return decode(cls, values, "")


def check_taps_inside(tap_layers: tuple[int, ...], target_layers: int) -> None:
    """The last layer's state reaches captures both normed and raw, so no drafter may tap it.

    Raises:
        CheckpointRefused: a tap at or past the last layer.
    """
    outside = [tap for tap in tap_layers if tap >= target_layers - 1]
    if outside:
        raise CheckpointRefused(
            f"tap_layers holds {outside[0]}, but taps must lie before the last of the target's "
            f"{target_layers} layers ({target_layers - 1})"
        )


def _size(value: int, name: str, limit: int = _MAX_SIZE) -> None:
    if not 1 <= value <= limit:
        raise CheckpointRefused(f"{name} must be between 1 and {limit}, not {value}")


def _positive(value: float, name: str) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise CheckpointRefused(f"{name} must be a positive number, not {value}")
