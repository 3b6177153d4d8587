"""Workers fill hosts, or are spread over them; servers are apart from workers where there is room."""

from __future__ import annotations

import numpy as np
import pytest

from src.launch.cluster.placement import NoRoom, place_servers, place_workers
from src.runtime.torch.mesh import AXES


@pytest.mark.parametrize(
    ("devices", "workers", "hosts", "share", "expected"),
    [
        ([2, 2], 2, None, False, [0, 0]),
        ([2, 2], 3, None, False, [0, 0, 1]),
        ([1, 3], 4, None, False, [0, 1, 1, 1]),
        ([2, 2], 2, 2, False, [0, 1]),
        ([4, 4, 4], 5, 2, False, [0, 0, 0, 1, 1]),
        # The second has no more.
        ([4, 1], 4, 2, False, [0, 0, 0, 1]),
        ([1, 1], 4, None, True, [0, 0, 1, 1]),
        ([1, 1], 3, 2, True, [0, 0, 1]),
    ],
)
def test_workers_are_placed(
    devices: list[int], workers: int, hosts: int | None, share: bool, expected: list[int]
) -> None:
    assert place_workers(devices, workers, hosts, share=share) == expected


@pytest.mark.parametrize(
    ("degrees", "within", "between"),
    [
        ({"data": 2, "tensor": 4}, ["tensor"], ["data"]),
        ({"data": 2, "shard": 4}, ["shard"], ["data"]),
        ({"pipeline": 2, "data": 2, "tensor": 2}, ["tensor", "data"], ["pipeline"]),
        ({"pipeline": 2, "shard": 2, "tensor": 2}, ["tensor", "shard"], ["pipeline"]),
    ],
)
def test_ranks_of_one_host_differ_along_the_axes_that_exchange_in_each_layer(
    degrees: dict[str, int], within: list[str], between: list[str]
) -> None:
    host = np.array(place_workers([4, 4], 8, None, share=False))
    mesh = host.reshape([degrees.get(axis, 1) for axis in AXES])
    lines = {
        axis: np.moveaxis(mesh, AXES.index(axis), -1).reshape(-1, size) for axis, size in degrees.items()
    }
    kept = {axis: bool((own == own[:, :1]).all()) for axis, own in lines.items()}
    assert kept == {**dict.fromkeys(within, True), **dict.fromkeys(between, False)}


def test_more_workers_than_devices_have_no_room() -> None:
    with pytest.raises(NoRoom, match=r"there are 3 device\(s\) on 2 host\(s\)"):
        place_workers([1, 2, 9], 4, 2, share=False)


def test_servers_are_apart_from_workers_where_there_is_room() -> None:
    assert place_servers(4, [0, 0, 1], 3) == [2, 3, 2]
    assert place_servers(2, [0, 1], 3) == [0, 1, 0]
