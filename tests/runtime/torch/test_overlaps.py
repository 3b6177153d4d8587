"""Tensors in a trained weight's memory, which not every strategy would keep there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from src.config import ConfigError
from src.runtime.torch.overlaps import check_memory, overlapping
from tests.support import config


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)


def row_of_a_weight() -> nn.Module:
    model = Two()
    model.register_buffer("row", model.first.weight.data[2])
    return model


def one_memory() -> nn.Module:
    model = Two()
    model.second.bias.data = model.first.bias.data
    return model


def frozen_around() -> nn.Module:
    model = Two()
    model.whole = nn.Parameter(torch.randn(20), requires_grad=False)
    model.part = nn.Parameter(model.whole.data[4:8])
    return model


def trained_behind_a_longer_one() -> nn.Module:
    """Of three in one memory the first two aren't trained, and reach as far as the third."""
    model, flat = nn.Module(), torch.randn(20)
    for name, part, trained in (("a", flat[:10], False), ("b", flat[2:4], False), ("c", flat[8:12], True)):
        setattr(model, name, nn.Parameter(part, requires_grad=trained))
    return model


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (row_of_a_weight, ("first.weight", "row")),
        (one_memory, ("first.bias", "second.bias")),
        (frozen_around, ("part", "whole")),
        (trained_behind_a_longer_one, ("c", "a")),
    ],
)
def test_two_in_one_memory_are_found(build: object, names: tuple[str, str]) -> None:
    assert overlapping(build()) == names


def shared() -> nn.Module:
    """One parameter with two names."""
    model = Two()
    model.second.weight = model.first.weight
    return model


def flat() -> nn.Module:
    """Parameters that follow each other in one memory, as those of a flattened LSTM."""
    model, flat = Two(), torch.randn(12)
    model.first.bias.data, model.second.bias.data = flat[:6], flat[6:]
    return model


def tables() -> nn.Module:
    """Buffers that are parts of each other, and nothing that is trained."""
    model = Two()
    model.register_buffer("table", torch.ones(8))
    model.register_buffer("upper", model.table[:4])
    model.register_buffer("positions", torch.arange(4).expand(3, -1))
    return model


@pytest.mark.parametrize("build", [shared, flat, tables])
def test_what_is_updated_alike_in_any_memory_is_fine(build: object) -> None:
    assert overlapping(build()) is None


def test_strategies_that_would_take_them_apart_refuse() -> None:
    for strategy in ("single", "ddp", "mpi", "local_sgd"):
        check_memory(config(f"strategy={strategy}"), row_of_a_weight())
    for strategy in (
        "pipeline",
        "pipedream",
        "tensor_parallel",
        "fsdp",
        "hybrid",
        "parameter_server",
        "hogwild",
    ):
        with pytest.raises(
            ConfigError, match=rf"row is in the memory of first.weight.*{strategy} would.*ddp"
        ):
            check_memory(config(f"strategy={strategy}"), row_of_a_weight())
        check_memory(config(f"strategy={strategy}"), Two())
