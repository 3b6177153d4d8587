"""Lay the weights of convolutions out in channels_last, except where that is slower.

The values stay the same.

On CPUs channels_last saves a third of the small CNN's step. A convolution that sees a single pixel
(the last stage of a ResNet on 28x28 images) is the exception: there oneDNN copies its weights at
every step, a third of ResNet-18's time at batch 64.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def channels_last(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """Lay the weights of the model's convolutions out for images of `shape` (H, W, C), and return the model.

    The sizes of the convolutions' inputs come from one forward pass in evaluation mode, which changes no
    buffer.
    """
    model = model.to(memory_format=torch.channels_last)
    single_pixel: list[nn.Conv2d] = []

    def note_single_pixel(layer: nn.Conv2d, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].shape[-2:].numel() == 1:
            single_pixel.append(layer)

    hooks = [
        layer.register_forward_pre_hook(note_single_pixel)
        for layer in model.modules()
        if isinstance(layer, nn.Conv2d)
    ]
    was_training = model.training
    try:
        height, width, channels = shape
        model.eval()(torch.zeros(1, channels, height, width))
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    for layer in single_pixel:
        layer.weight.data = layer.weight.data.contiguous()
    return model
