"""EAST gives a score and a geometry at a quarter of the resolution, and can be cut by its components."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from src.config import ConfigError
from src.models.torch import east
from src.models.torch.east.model import East
from src.models.torch.resnet import resnet50
from src.partition.model_profile import boundary
from src.partition.torch.graph import operations

LARGE = ("resnet50", "vgg16")


@pytest.mark.parametrize("trunk", ["small", *LARGE])
def test_every_trunk_gives_a_score_and_a_geometry_for_every_fourth_pixel(trunk: str) -> None:
    model = east.build(classes=1, shape=(64, 96, 3), trunk=trunk, width=4).eval()
    with torch.no_grad():
        score, geometry = model(torch.randn(2, 3, 64, 96))
    assert score.shape == (2, 1, 16, 24) and geometry.shape == (2, 5, 16, 24)
    distances, angles = geometry[:, :4], geometry[:, 4]
    assert float(distances.min()) >= 0 and float(distances.max()) <= 96
    assert float(angles.abs().max()) <= math.pi / 4


@pytest.mark.parametrize("trunk", ["small", *(pytest.param(each, marks=pytest.mark.slow) for each in LARGE)])
def test_features_of_four_resolutions_cross_from_the_trunk_to_the_merging_branch(trunk: str) -> None:
    model = east.build(classes=1, shape=(64, 64, 3), trunk=trunk, width=4)
    graph = operations(model, (torch.randn(1, 3, 64, 64),))
    values = graph.values((torch.randn(1, 3, 64, 64),))
    merging, heads = boundary(graph.names, "merging"), boundary(graph.names, "heads")
    sizes = sorted(values[node.name].shape[2] for node in graph.live[merging])
    assert sizes == [2, 4, 8, 16]
    assert [values[node.name].shape[2] for node in graph.live[heads]] == [16]
    assert all(name.startswith("trunk.") for name in graph.names[:merging])
    assert all(name.startswith("merging.") for name in graph.names[merging:heads])


def test_images_that_the_levels_do_not_divide_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="images of 100 x 64 pixels don't fit it; each side must be a multiple"
    ):
        east.build(classes=1, shape=(64, 100, 3), trunk="small", width=4)


def test_a_trunk_takes_published_weights(tmp_path: Path) -> None:
    published = resnet50(classes=10, shape=(64, 64, 3), stem="7x7")
    torch.save(published.state_dict(), tmp_path / "weights.pt")
    path = str(tmp_path / "weights.pt")
    model = east.build(classes=1, shape=(64, 64, 3), trunk="resnet50", width=4, pretrained=path)
    assert isinstance(model, East)
    own = dict(model.trunk.named_parameters())
    assert torch.equal(own["stages.2.0.conv1.weight"], published.layer3[0].conv1.weight)
