"""Workers fill hosts, or are spread over them; servers are apart from workers where there is room."""

from __future__ import annotations

import pytest

from src.launch.cluster.placement import NoRoom, place_servers, place_workers


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


def test_more_workers_than_devices_have_no_room() -> None:
    with pytest.raises(NoRoom, match=r"there are 3 device\(s\) on 2 host\(s\)"):
        place_workers([1, 2, 9], 4, 2, share=False)


def test_servers_are_apart_from_workers_where_there_is_room() -> None:
    assert place_servers(4, [0, 0, 1], 3) == [2, 3, 2]
    assert place_servers(2, [0, 1], 3) == [0, 1, 0]
