"""The norm of a gradient of which each server has a part: the same sum for all, clock by clock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from src.runtime.torch.parameter_server import norm_exchange
from src.runtime.torch.parameter_server.norm_exchange import NormHub


def test_all_servers_get_the_exact_sum_of_their_own_clock() -> None:
    hub = NormHub(3)
    # In another order for each clock; added up one by one, 1e-17 would be lost with 1.0.
    parts = {4: [1.0, 1e-17, -1.0], 5: [1e-17, -1.0, 1.0], 6: [2.0, 3.0, 4.0]}
    with ThreadPoolExecutor(9) as pool:
        sums = {clock: [pool.submit(hub, clock, part) for part in own] for clock, own in parts.items()}
        found = {clock: [each.result(10) for each in own] for clock, own in sums.items()}
    assert found == {4: [1e-17] * 3, 5: [1e-17] * 3, 6: [9.0] * 3}


def test_a_clock_may_have_a_second_update() -> None:
    hub = NormHub(2)
    with ThreadPoolExecutor(2) as pool:
        for first, second in ((1.0, 2.0), (5.0, 6.0)):
            assert {each.result(10) for each in [pool.submit(hub, 0, p) for p in (first, second)]} == {
                first + second
            }


def test_a_server_that_brings_nothing_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm_exchange, "WAIT_SECONDS", 0.01)
    with pytest.raises(TimeoutError, match="1 of 2 servers have an update of clock 7"):
        NormHub(2)(7, 1.0)
