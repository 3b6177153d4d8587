"""What of a model would stay on the CPU is found before a GPU trains, by shapes alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from src.data.generated import synthetic
from src.runtime.common.context import RankContext
from src.runtime.torch.device_check import check_device
from tests.support import config

IMAGES = {"shape": [4, 4, 1], "classes": 3, "samples": 8, "test_samples": 4, "source": "generated"}


class Net(nn.Module):
    """A dense layer, and a function of the module and what that gives."""

    def __init__(self, function: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(16, 3), function
        self.listed = [nn.Linear(3, 3)]
        self.table = torch.ones(3)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, images: Tensor) -> Tensor:
        return self.function(self, self.layer(images.flatten(1)))


def notes(model: nn.Module, device: str, folder: Path) -> list[str]:
    chosen = config("model=mlp")
    chosen = dataclasses.replace(chosen, hardware=dataclasses.replace(chosen.hardware, device=device))
    said: list[str] = []
    data = synthetic.make({**IMAGES, "generator_seed": 0})
    check_device(RankContext(chosen, 0, 1, data, folder, (0,)), model, said.append)
    return said


MIXING: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "a list of layers": lambda net, hidden: net.listed[0](hidden),
    "a tensor as an attribute": lambda net, hidden: hidden * net.table,
    "created on the CPU": lambda net, hidden: hidden + torch.rand(3),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_would_stay_on_the_cpu_is_named(name: str, tmp_path: Path) -> None:
    model = Net(MIXING[name])
    assert notes(model, "cpu", tmp_path) == []
    (said,) = notes(model, "gpu", tmp_path)
    line = MIXING[name].__code__.co_firstlineno
    assert said.startswith(
        f"note: line {line} of {__file__} meets a tensor on the CPU; where that stays there"
    )
    assert not any(tensor.is_meta for tensor in model.state_dict().values())


MOVING: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "a buffer": lambda net, hidden: hidden * net.scale,
    "a number": lambda net, hidden: hidden * torch.tensor(2.0),
    "on the inputs' device": lambda net, hidden: hidden + torch.rand(3, device=hidden.device),
    "asks for data": lambda net, hidden: hidden * hidden.max().item() + torch.rand(3),
}


@pytest.mark.parametrize("name", MOVING)
def test_what_moves_or_cannot_be_told_is_left_alone(name: str, tmp_path: Path) -> None:
    assert notes(Net(MOVING[name]), "gpu", tmp_path) == []
