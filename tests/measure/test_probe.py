"""The probe is short, says what a core can do, and forgives one interruption."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from src.measure import probe

pytestmark = pytest.mark.timed


def test_the_median_product_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Left:
        """Takes 10 ms a product, but for the first timed one, which was interrupted for 50 ms."""

        products = 0

        def __matmul__(self, _: object) -> None:
            nonlocal now
            now += 0.05 if self.products == 1 else 0.01
            self.products += 1

    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(np, "full", lambda *_: Left())
    # 2 x 384^3 operations in 0.01 s, on two cores.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert probe.gflops() == pytest.approx(2 * 384**3 / 0.01 / 1e9 / 2)


def test_a_real_probe_is_short_and_positive() -> None:
    start = time.perf_counter()
    assert probe.gflops() > 0.1
    assert time.perf_counter() - start < probe.SECONDS + 2
