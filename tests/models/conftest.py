"""What tests of models share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def in_float64() -> Iterator[None]:
    """Within the test torch makes floating-point tensors of float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
