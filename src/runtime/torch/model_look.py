"""Look at what a model does in training by which its losses may depend on how batches are divided.

Nothing is concluded from names: the model is run on a few samples, and left as it was.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from src.compat.torch import BatchNorm, has_batch_statistics
from src.measure.rank_record import RankRecord
from src.models.torch.unchanged import unchanged
from src.tasks.torch.outputs import autocast, model_outputs

# Forward passes of a model that draws random numbers.
LOOKS = 4
# The largest relative norm by which a sample's outputs may differ by rounding, by precision.
ROUNDING = {"fp32": 1e-4, "bf16": 5e-2}


def facts(model: nn.Module, inputs: Sequence[Tensor], *, precision: str = "fp32") -> RankRecord:
    """Return what a forward pass in training does: `batch_statistics` and what follows it in `RankRecord`.

    Where ranks compute statistics together, all of them call this function.

    Args:
        model: the whole model.
        inputs: those of a few samples [samples, ...], on the model's device.
        precision: that of the training, `fp32` or `bf16`.
    """

    def run(samples: slice) -> tuple[Tensor, ...]:
        with torch.no_grad(), autocast(precision, inputs[0].device):
            return model_outputs(model(*(tensor[samples] for tensor in inputs)))

    half = len(inputs[0]) // 2
    with unchanged(model):
        before, buffers = _generators(), _buffers(model)
        whole = run(slice(None))
        draws = before != _generators()
        moved = [name for name, value in _buffers(model).items() if not _equal(value, buffers.get(name))]
    with unchanged(model):
        # What draws by a generator of its own can't be put back.
        draws = draws or not all(map(_equal, whole, run(slice(None))))
    over_batch = False
    if half and not draws:
        with unchanged(model), _frozen_batchnorm(model):
            together = run(slice(None))
        with unchanged(model), _frozen_batchnorm(model):
            alone = run(slice(half))
        # What is a number for all samples together, as a further term of a loss, is none's output.
        pairs = [(part, both[:half]) for part, both in zip(alone, together, strict=True) if both.dim()]
        over_batch = max((_gap(*pair) for pair in pairs), default=0.0) > ROUNDING[precision]
    return {
        "batch_statistics": has_batch_statistics(model),
        "draws_random_numbers": draws,
        "moves_buffers": sorted(set(moved) - _of_batchnorm(model)),
        "computes_over_batch": over_batch,
    }


def step_facts(
    model: nn.Module, run: Callable[[slice], Tensor], count: int, *, precision: str = "fp32"
) -> RankRecord:
    """Return what `facts` does of a training step, of which only the loss [] is seen.

    Samples are mixed where the loss of all is another one than the mean over both halves, be it that it isn't
    a mean over samples.

    Args:
        model: the whole model.
        run: returns the loss of some of the samples.
        count: how many samples there are.
        precision: that of the training, `fp32` or `bf16`.
    """

    def loss(samples: slice) -> Tensor:
        with unchanged(model), _frozen_batchnorm(model):
            return run(samples).detach()

    with unchanged(model):
        before, buffers = _generators(), _buffers(model)
        whole = run(slice(None, count)).detach()
        draws = before != _generators()
        moved = [name for name, value in _buffers(model).items() if not _equal(value, buffers.get(name))]
    with unchanged(model):
        draws = draws or not _equal(whole, run(slice(None, count)).detach())
    over_batch = False
    if not draws:
        halves = (loss(slice(count // 2)) + loss(slice(count // 2, count))) / 2
        over_batch = _gap(halves, loss(slice(count))) > ROUNDING[precision]
    return {
        "draws_random_numbers": draws,
        "moves_buffers": sorted(set(moved) - _of_batchnorm(model)),
        "computes_over_batch": over_batch,
    }


def reached_by(
    model: nn.Module,
    run: Callable[[], Tensor],
    device: torch.device,
    *,
    precision: str = "fp32",
    weights: bool = True,
) -> tuple[set[str], bool]:
    """Return the names of the parameters that get gradients in training, and whether always the same do.

    A model that draws random numbers may leave out other layers each time, and is looked at several times.
    All processes that look at the same samples find the same.

    Args:
        model: the whole model.
        run: returns the loss [] of a few samples.
        device: the model's.
        precision: that of the training, `fp32` or `bf16`.
        weights: whether its weights are left as they were, too.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    found: list[set[str]] = []
    for seed in range(LOOKS):
        with unchanged(model, weights=weights):
            torch.manual_seed(seed)
            before = _generators()
            with torch.enable_grad(), autocast(precision, device):
                total = run()
            found.append({names[leaf] for leaf in _leaves(total) if leaf in names})
            if before == _generators():
                break
    return set().union(*found), all(each == found[0] for each in found)


def reached_by_each(
    model: nn.Module, runs: Sequence[Callable[[], Tensor]], device: torch.device, *, precision: str = "fp32"
) -> tuple[set[str], bool]:
    """Return what `reached_by` does, of samples of which each run returns the loss [] of another one.

    A model may choose layers by its data, as a mixture of experts does. One that takes no single sample tells
    of those before. It isn't trained afterwards.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    found: list[set[str]] = []
    # BatchNorm needs several samples to train.
    with unchanged(model, weights=False), _frozen_batchnorm(model), contextlib.suppress(Exception):
        for run in runs:
            with torch.enable_grad(), autocast(precision, device):
                total = run()
            found.append({names[leaf] for leaf in _leaves(total) if leaf in names})
    return set().union(*found), all(each == found[0] for each in found)


def _leaves(tensor: Tensor) -> Iterator[Tensor]:
    """Return the tensors whose gradients a backward pass from `tensor` would set."""
    seen: set[Any] = set()
    waiting = [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        waiting += [following for following, _ in node.next_functions]


def _generators() -> list[bytes]:
    """Return the states of torch's, NumPy's and Python's generators of random numbers."""
    states = [torch.get_rng_state().numpy().tobytes()]
    states += [torch.cuda.get_rng_state().numpy().tobytes()] if torch.cuda.is_initialized() else []
    return [*states, repr(np.random.get_state()).encode(), repr(random.getstate()).encode()]


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def _of_batchnorm(model: nn.Module) -> set[str]:
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, BatchNorm)]
    return {f"{name}.{buffer}".lstrip(".") for name, layer in layers for buffer, _ in layer.named_buffers()}


@contextlib.contextmanager
def _frozen_batchnorm(model: nn.Module) -> Iterator[None]:
    """Have BatchNorm evaluate within the block."""
    layers = [layer for layer in model.modules() if isinstance(layer, BatchNorm) and layer.training]
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True


def _equal(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and one.shape == other.shape and bool((one == other).all())


def _gap(one: Tensor, other: Tensor) -> float:
    """Return the relative norm of a difference; of outputs that aren't one a sample, infinity."""
    if one.shape != other.shape:
        return float("inf")
    difference, norm = float((one - other).float().norm()), float(other.float().norm())
    return difference / norm if norm else difference
