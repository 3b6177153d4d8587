"""Compute what a transformer's layer and head ask of a device, from the model's shapes.

Products and bytes of a layer are counted as in Narayanan et al. 2021 (Megatron-LM, appendix) and Korthikanti
et al. 2022 (section 4); a device has one part of `tensor` of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from src.config.mistakes import ConfigError
from src.predict.layout import Layout
from src.predict.roofline import Roofline, Work
from src.predict.row import Row

# How often a token's features cross the memory in a forward pass: for both norms, both additions and biases,
# which all devices of a tensor group do unless the sequence is parallel; and for the activation function,
# those of the feed-forward part, of which each device has a part.
NORMS, ACTIVATION = 12.0, 2.0
# A backward pass moves about twice what a forward pass does.
BACKWARD = 2.0
# Softmax, its mask and its dropout move each score so often where attention isn't fused.
SCORES = 5.0
# Bytes that the loss moves for each logit, forward and backward: casts, softmax and gradient in fp32.
LOSS = 26.0
KERNELS, KERNELS_BACKWARD = 30, 55


@dataclass(frozen=True)
class Shapes:
    """A transformer's shapes: features, heads' features, and the feed-forward part's width and matrices."""

    layers: int
    hidden: int
    heads: int
    kv_features: int
    ffn: int
    matrices: int
    sequence: int
    vocabulary: int

    @classmethod
    def of(cls, row: Row) -> Shapes:
        """Read them from a row; raise `ConfigError` where some are missing or don't fit each other."""
        if row.layers is None or row.hidden is None or row.sequence is None:
            raise ConfigError("layers, hidden, sequence: are needed of a transformer")
        heads = row.heads or max(1, row.hidden // 128)
        if row.kv_heads is not None and heads % row.kv_heads:
            raise ConfigError(f"kv_heads={row.kv_heads}: doesn't divide heads={heads}")
        ffn = row.ffn or 4 * row.hidden
        return cls(
            row.layers,
            row.hidden,
            heads,
            row.hidden * (row.kv_heads or heads) // heads,
            ffn,
            # A width other than four times the features is that of a gated part, which has three matrices.
            2 if ffn == 4 * row.hidden else 3,
            row.sequence,
            row.vocabulary or 0,
        )

    @property
    def layer_parameters(self) -> int:
        """Return the parameters of one layer."""
        attention = self.hidden * (2 * self.hidden + 2 * self.kv_features)
        return attention + self.matrices * self.hidden * self.ffn + 4 * self.hidden

    @property
    def parameters(self) -> int:
        """Return the parameters of the whole model, whose head's weights are its embedding's."""
        return self.layers * self.layer_parameters + self.vocabulary * self.hidden


@dataclass(frozen=True)
class Passes:
    """The work of one micro-batch on one device: of a layer, of its attention alone, and of the head."""

    forward: Work
    backward: Work
    attention: Work
    head: Work


def passes(layout: Layout, shapes: Shapes) -> Passes:
    """Return the work of one micro-batch on one device."""
    row, t = layout.row, layout.tensor
    if row.precision not in layout.device.peak:
        raise ConfigError(
            f"precision={row.precision}: {row.device} has no units for it, but for "
            f"{', '.join(layout.device.peak)}"
        )
    device = Roofline.of(layout.device, row.precision)
    tokens = layout.samples * shapes.sequence
    h, size = shapes.hidden, device.size
    qkv = (h + 2 * shapes.kv_features) / t
    up = shapes.ffn / t
    products = [
        (tokens, h, qkv, 1.0),
        (tokens, h / t, h, 1.0),
        *[(tokens, h, up, 1.0)] * (shapes.matrices - 1),
        (tokens, up, h, 1.0),
    ]
    # Each token sees those before it, half of all; a product that isn't fused computes the others as well.
    batches = layout.samples * shapes.heads / t
    scores = batches * shapes.sequence**2
    features = h / shapes.heads
    fused = row.flash_attention
    core: list[tuple[float, float, float, float]] = (
        []
        if fused
        else [
            (shapes.sequence, features, shapes.sequence, batches),
            (shapes.sequence, shapes.sequence, features, batches),
        ]
    )
    flops = 2 * scores * features if fused else 0.0
    score_bytes = 0.0 if fused else SCORES * size * scores
    split = t if row.sequence_parallel else 1
    memory = size * tokens * (NORMS * h / split + ACTIVATION * shapes.matrices * up / 2)
    twice = [pair for m, k, n, c in [*products, *core] for pair in ((m, n, k, c), (k, m, n, c))]
    logits = tokens * shapes.vocabulary / t
    return Passes(
        forward=device.work(
            [*products, *core], attention=flops, memory=memory + score_bytes, kernels=KERNELS
        ),
        backward=device.work(
            twice,
            attention=2.5 * flops,
            memory=BACKWARD * (memory + score_bytes),
            kernels=KERNELS_BACKWARD,
        ),
        attention=device.work(core, attention=flops, memory=score_bytes),
        head=device.work(
            [(tokens, h, shapes.vocabulary / t, 1.0)] * 3 if shapes.vocabulary else [],
            memory=LOSS * logits,
        ),
    )
