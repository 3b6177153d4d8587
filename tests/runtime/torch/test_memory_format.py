"""channels_last changes where values lie and nothing else."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from src.models.torch import cnn
from src.models.torch.resnet import resnet18
from src.runtime.torch.memory_format import lay_out

SHAPE = (28, 28, 1)


def resnet() -> nn.Module:
    return resnet18(classes=10, shape=SHAPE, stem="3x3")


def shallow() -> nn.Module:
    return cnn.build(classes=10, shape=SHAPE)


@pytest.mark.parametrize("build", [shallow, resnet])
def test_values_gradients_and_buffers_stay(build: type[nn.Module]) -> None:
    torch.manual_seed(0)
    plain = build().double()
    # The sizes are found out with images of the default dtype.
    torch.set_default_dtype(torch.float64)
    try:
        laid_out = copy.deepcopy(plain)
        assert lay_out(laid_out, [torch.zeros(1, 1, 28, 28)]) is None
    finally:
        torch.set_default_dtype(torch.float32)
    for name, value in plain.state_dict().items():
        assert torch.equal(laid_out.state_dict()[name], value), name
    images = torch.randn(4, 1, 28, 28, dtype=torch.float64)
    outputs = [model(images) for model in (plain, laid_out)]
    torch.testing.assert_close(outputs[1], outputs[0])
    for model, output in zip((plain, laid_out), outputs, strict=True):
        output.square().sum().backward()
        assert model.training
    for (name, one), other in zip(plain.named_parameters(), laid_out.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, msg=lambda text, name=name: f"{name}: {text}")


def test_only_convolutions_of_a_single_pixel_stay_contiguous() -> None:
    model = resnet()
    assert lay_out(model, [torch.zeros(1, 1, 28, 28)]) is None
    layouts = {
        name: layer.weight.is_contiguous(memory_format=torch.channels_last)
        for name, layer in model.named_modules()
        # A 1x1 kernel is contiguous either way.
        if isinstance(layer, nn.Conv2d) and layer.kernel_size != (1, 1) and layer.in_channels > 1
    }
    # 28 -> 14 (stem) -> 7 (pool, layer1) -> 4 (layer2) -> 2 (layer3) -> 1 (layer4): only the first
    # convolution of layer4 still sees 2x2.
    contiguous = {name for name, last in layouts.items() if not last}
    assert contiguous == {"layer4.0.conv2", "layer4.1.conv1", "layer4.1.conv2"}


def test_no_hook_is_left_and_evaluation_mode_stays() -> None:
    model = resnet().eval()
    lay_out(model, [torch.zeros(1, 1, 28, 28)])
    assert not model.training
    assert not any(layer._forward_pre_hooks for layer in model.modules())


class Flattened(nn.Module):
    """The classical ending of a small CNN, `view` behind a convolution, which channels_last can't do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 5), nn.Linear(4 * 24 * 24, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.conv(images)
        return self.head(hidden.view(len(hidden), -1))


class AsStored(Flattened):
    """Reads an activation in the order of memory, where nothing fails in another layout."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.conv(images)
        return self.head(hidden.as_strided((len(hidden), 4 * 24 * 24), (4 * 24 * 24, 1)))


@pytest.mark.parametrize(
    ("kind", "reason"), [(Flattened, "view size is not compatible"), (AsStored, "it computes something else")]
)
def test_a_model_that_needs_the_contiguous_layout_gets_it(kind: type[nn.Module], reason: str) -> None:
    torch.manual_seed(0)
    plain = kind()
    images = torch.randn(4, 28, 28, 1).permute(0, 3, 1, 2)
    expected = plain(images.reshape(-1).view(4, 1, 28, 28))
    failure = lay_out(plain, [images[:1]])
    assert failure is not None and reason in failure
    assert torch.equal(plain(images), expected)
    assert copy.deepcopy(plain)(images).shape == (4, 10)
