"""Compute what a transformer's training holds on the device that has most.

Activations are counted as in Korthikanti et al. 2022 (section 4, equations 1 to 5), weights and the state of
Adam as in Rajbhandari et al. 2020 (ZeRO, section 3).
"""

from __future__ import annotations

import math

from src.config.schedules import SCHEDULES, Placement
from src.predict.step import Step

GIB = 2**30
# Bytes of a parameter: weight, gradient and two moments in fp32, or the first two in two bytes, and a copy.
STATE = 16.0
# A gradient that is summed in fp32 over a pipeline's micro-batches.
SUMMED = 2.0
# What a context, its libraries' workspaces and the allocator's gaps take.
RESERVED_GIB = 2.0


def predicted_bytes(step: Step) -> float | None:
    """Return the bytes that the fullest device holds, `None` where the model's shapes aren't known."""
    row, plan = step.row, step.layout
    if not row.is_transformer:
        return None
    shapes, t = step.shapes, plan.tensor
    size = 2 if row.precision in ("fp16", "bf16") else 4
    layers = math.ceil(shapes.layers / row.pipeline)
    own = (layers * shapes.layer_parameters + shapes.vocabulary * shapes.hidden) / t
    state = own / plan.shard * (STATE + (SUMMED if row.pipeline > 1 and size == 2 else 0.0))
    if plan.shard > 1:
        # One layer is whole while the next one is gathered.
        state += 2 * size * shapes.layer_parameters / t
    tokens = plan.samples * shapes.sequence
    layer = tokens * shapes.hidden * size / 2 * _bytes_of_a_feature(step)
    kept = layer
    if row.recompute in ("full", "except_last"):
        kept = tokens * shapes.hidden * size / (t if row.sequence_parallel else 1)
    logits = tokens * shapes.vocabulary / t * (size + 4)
    held = layers * kept * _micro_batches_held(step)
    if row.recompute == "except_last":
        held += layers * (layer - kept)
    return state + held + (layer if kept < layer else 0.0) + logits


def fits(step: Step, held: float) -> bool:
    """Return whether a device has room for that many bytes, and for what frameworks take besides."""
    return held <= (step.layout.device.memory_gib - RESERVED_GIB) * GIB


def _bytes_of_a_feature(step: Step) -> float:
    """Return the bytes that a layer saves for each feature of a token, of elements of two bytes."""
    row, shapes, t = step.row, step.shapes, step.layout.tensor
    scores = 5 * shapes.heads * shapes.sequence / shapes.hidden
    if row.flash_attention or row.recompute == "selective":
        scores = 0.0
    wide = 8 + 4 * shapes.matrices * shapes.ffn / (2 * shapes.hidden)
    return 10 / (t if row.sequence_parallel else 1) + (wide + scores) / t


def _micro_batches_held(step: Step) -> float:
    """Return how many micro-batches' activations the first stage holds at once."""
    plan, p = step.layout, step.row.pipeline
    if plan.schedule is None:
        return 1.0
    if plan.schedule in ("gpipe", "looped_bfs"):
        return plan.microbatches
    loop = SCHEDULES[plan.schedule].placement is Placement.LOOP
    most = p * (1 + (p - 1) / (p * plan.virtual)) if loop and plan.virtual > 1 else p
    return min(plan.microbatches, most)
