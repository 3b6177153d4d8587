"""Make a model's inputs and the loss's targets of arrays: tensors on a rank's device, images normalised."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from src.data.shards import Rows
from src.runtime.common.context import RankContext
from src.tasks.torch.task import Task

Tensors = tuple[Tensor, ...]
# Values that are normalised at once on a CPU: as many as its caches hold, or, where torch would share the
# work out to several threads, so few that it doesn't. Those would wait for each other at every piece.
CACHED = 1 << 17
SERIAL = (1 << 15) - 1


def input_tensors(
    context: RankContext, arrays: Sequence[np.ndarray | Tensor], device: torch.device
) -> Tensors:
    """Return a model's inputs on `device`: uint8 images normalised, other arrays as `typed` does."""
    tensors = [to_device(array, device) for array in arrays]
    return tuple(normalise(context, each) if _are_images(each) else _in_own_type(each) for each in tensors)


def target_tensors(task: Task, arrays: tuple[np.ndarray, ...], device: torch.device) -> Tensors:
    """Return the dataset's targets and those that the task derives from them, as `typed` does."""
    return typed((*arrays, *task.derive(arrays)), device)


def first_samples(
    context: RankContext, task: Task, count: int, device: torch.device
) -> tuple[Tensors, Tensors]:
    """Return the inputs and targets of the first so many training samples, on `device`."""
    samples = context.arrays.train.read(slice(count))
    return (
        input_tensors(context, samples.inputs, device),
        target_tensors(task, samples.targets, device),
    )


def typed(arrays: Sequence[np.ndarray | Tensor], device: torch.device) -> Tensors:
    """Return arrays on `device` in the types that models and losses take.

    Numbers with a fraction are in torch's default type, and those of tokens, uint16 or uint32, int64. Others
    stay as they are.
    """
    return tuple(_in_own_type(to_device(array, device)) for array in arrays)


def blank_inputs(arrays: Sequence[Rows], count: int) -> Tensors:
    """Return uninitialized tensors in host memory for `count` samples of inputs, for `fill_inputs`.

    Args:
        arrays: arrays whose shapes behind the first dimension, and types, are the inputs'.
        count: the number of samples.
    """
    blank = []
    for array in arrays:
        is_image = array.dtype == np.uint8 and len(array.shape) == 4
        kind = _own_type(torch.from_numpy(np.empty(0, np.float32 if is_image else array.dtype)).dtype)
        blank.append(torch.empty((count, *array.shape[1:]), dtype=kind))
    return tuple(blank)


def fill_inputs(context: RankContext, arrays: Sequence[np.ndarray], blank: Sequence[Tensor]) -> None:
    """Write inputs into tensors of `blank_inputs`, or parts of them: images normalised, others converted."""
    for array, result in zip(arrays, blank, strict=True):
        tensor = torch.from_numpy(array)
        if _are_images(tensor):
            normalise(context, tensor, result)
        else:
            result.copy_(tensor)


def filled_inputs(arrays: Sequence[Rows], filled: Sequence[Tensor]) -> Tensors:
    """Return the tensors that were filled with the inputs `arrays` are of, images by channels first."""
    are_images = [array.dtype == np.uint8 and len(array.shape) == 4 for array in arrays]
    return tuple(
        tensor.permute(0, 3, 1, 2) if image else tensor
        for tensor, image in zip(filled, are_images, strict=True)
    )


def normalise(context: RankContext, images: Tensor, result: Tensor | None = None) -> Tensor:
    """Normalise uint8 images [batch, height, width, channels]; return [batch, channels, height, width].

    The result has torch's default dtype: fp32, or float64 where a test asks for sharper equality. A pixel x
    becomes x * scale + offset. On a CPU the calling thread does it alone, piece by piece, so that what was
    converted is still in the cache when it is scaled.

    Args:
        context: the rank's context.
        images: the images.
        result: where the result is written, [batch, height, width, channels]; by default a new tensor.
    """
    batch, height, width, channels = images.shape
    kind = torch.get_default_dtype()
    scale, offset = _scale_and_offset(
        tuple(context.arrays.mean), tuple(context.arrays.std), width, images.device, kind
    )
    if result is None:
        result = torch.empty(images.shape, dtype=kind, device=images.device)
    # Whole rows: an operation whose innermost loop is over three channels takes ten times as long.
    shape = (batch * height, width * channels)
    size = CACHED if torch.get_num_threads() == 1 else SERIAL
    rows = max(1, shape[0] if images.device.type != "cpu" else size // shape[1])
    pieces = (tensor.reshape(shape).split(rows) for tensor in (images, result))
    for source, piece in zip(*pieces, strict=True):
        piece.copy_(source)
        torch.addcmul(offset, piece, scale, out=piece)
    return result.permute(0, 3, 1, 2)


def to_device(array: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """Make a tensor of an array on `device`; on a GPU without waiting for what that still does."""
    tensor = torch.as_tensor(array)
    if device.type == "cuda" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _are_images(tensor: Tensor) -> bool:
    return tensor.dtype == torch.uint8 and tensor.ndim == 4


def _in_own_type(tensor: Tensor) -> Tensor:
    return tensor.to(_own_type(tensor.dtype))


def _own_type(kind: torch.dtype) -> torch.dtype:
    """Return the type in which models and losses take numbers that are kept in the type `kind`."""
    if kind.is_floating_point:
        return torch.get_default_dtype()
    # Few of torch's operations take these.
    return torch.int64 if kind in (torch.uint16, torch.uint32) else kind


@functools.cache
def _scale_and_offset(
    mean: tuple[float, ...], std: tuple[float, ...], width: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the factor and the summand of each value in a row of pixels, [width * channels] each, made once.

    To copy them to a GPU would have the host wait for the GPU at every batch.
    """
    centre, deviation = (torch.tensor(values, device=device, dtype=dtype) for values in (mean, std))
    return (1 / (deviation * 255)).repeat(width), (-centre / deviation).repeat(width)
