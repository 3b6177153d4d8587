"""Rehearse a model's move to a GPU before any rank is started."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from src.models.torch.unchanged import unchanged
from src.runtime.common.context import RankContext
from src.runtime.torch.tensors import input_tensors

# By which torch says that an operation was given tensors of several devices.
MIXED = ("on the expected device", "on the same device", "in the same device", "at the same device")


def check_device(context: RankContext, model: nn.Module, note: Callable[[str], None]) -> None:
    """Tell by `note` where a run on GPUs would meet a tensor of the model's that stays on the CPU.

    A copy of the model moves to the `meta` device, which has shapes and no data, as it would move to a GPU.
    What can't be copied, or asks for data, isn't judged. It is no refusal, for a model may ask for the GPU
    itself (`torch.cuda.is_available()`), and none can be seen from here.
    """
    if context.config.hardware.device != "gpu":
        return
    if (mixed := _mixes(context, model, torch.device("meta"))) is not None:
        note(
            f"note: {mixed} meets a tensor on the CPU; where that stays there on a GPU, the run fails: make "
            "it a parameter or a buffer (layers: by nn.ModuleList), or create it on the inputs' device"
        )


def _mixes(context: RankContext, model: nn.Module, device: torch.device) -> str | None:
    """Return where a forward pass on `device` mixes devices, `line N of FILE`, if it is seen to."""
    samples = context.arrays.train.read(slice(2))
    try:
        with unchanged(model), torch.no_grad():
            moved = copy.deepcopy(model).to(device)
            moved(*input_tensors(context, samples.inputs, device))
    except Exception as error:
        if isinstance(error, RuntimeError) and any(word in str(error) for word in MIXED):
            return _place(error)
    return None


def _place(error: RuntimeError) -> str:
    """Return the last line outside of torch by which an error was raised."""
    library = Path(torch.__file__).parent
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if library not in Path(frame.filename).parents
    ]
    # The first one is this file's.
    return f"line {frames[-1].lineno} of {frames[-1].filename}" if len(frames) > 1 else "the forward pass"
