"""Seconds of kernels on a device of simple numbers, by hand."""

from __future__ import annotations

import pytest

from src.config.mistakes import ConfigError
from src.measure.kernels import CONVOLUTION, SMALL_CONVOLUTION, Kernel, Kernels
from src.predict.constants import Constants
from src.predict.sheets import Device
from src.predict.traced import costs

# A TFLOP/s, ten processors and a GB/s; with tensor cores ten times that.
DEVICE = Device(
    reported="x", memory_gib=1, bandwidth=1, peak={"fp32": 1.0}, processors=10, link=1, switched=True, node=8
)
CORES = DEVICE.model_copy(update={"peak": {"fp32": 1.0, "tf32": 10.0, "bf16": 10.0}})
PLAIN = Constants(
    gemm_efficiency=1.0, gemm_inner=0.0, memory_efficiency=1.0, attention_efficiency=0.5,
    convolution_efficiency=0.8, winograd=0.5,
)  # fmt: skip


def seconds(kernel: Kernel, device: Device = DEVICE) -> float:
    return float(costs.seconds(Kernels.of([kernel]), device, PLAIN)[0])


def test_a_large_product_takes_its_flops() -> None:
    # Ten tiles of 128 x 128 are one wave.
    assert seconds(Kernel(1280, 100, 128, 1)) == pytest.approx(2 * 1280 * 100 * 128 / 1e12)
    # Half a wave more costs three quarters of one.
    assert seconds(Kernel(1920, 100, 128, 1)) == pytest.approx(1.75 * 2 * 1280 * 100 * 128 / 1e12)


def test_a_product_of_few_tiles_divides_its_inner_dimension() -> None:
    # Two tiles in five parts each fill ten processors.
    assert seconds(Kernel(256, 5120, 128, 1)) == pytest.approx(2 * 256 * 5120 * 128 / 1e12)
    # A short one can't be divided, and eight of them idle.
    assert seconds(Kernel(256, 100, 128, 1)) == pytest.approx(5 * 2 * 256 * 100 * 128 / 1e12)


def test_operands_cross_the_memory() -> None:
    assert seconds(Kernel(128, 1, 128, 1, moved=1e9)) == pytest.approx(1.0)
    assert seconds(Kernel(memory=2e9)) == pytest.approx(2.0)


def test_a_processor_moves_so_many_elements() -> None:
    # Ten processors move 250 million elements a second, of four bytes as many as cross the memory.
    slow = PLAIN.changed({"elements_per_second": 2.5e7})
    kernels = Kernels.of([Kernel(memory=2e9, elements=5e8), Kernel(memory=2e9, elements=1e9)])
    assert list(costs.seconds(kernels, CORES, slow)) == pytest.approx([2.0, 4.0])


def test_convolutions_are_slower_and_small_ones_save_multiplications_without_tensor_cores() -> None:
    product = seconds(Kernel(1280, 100, 128, 1))
    assert seconds(Kernel(1280, 100, 128, 1, kind=CONVOLUTION)) == pytest.approx(product / 0.8)
    assert seconds(Kernel(1280, 100, 128, 1, kind=SMALL_CONVOLUTION)) == pytest.approx(product / 0.8 / 2)
    # By default torch gives convolutions of fp32 to tensor cores, and no products.
    assert seconds(Kernel(1280, 100, 128, 1), CORES) == pytest.approx(product)
    small = Kernel(1280, 100, 128, 1, kind=SMALL_CONVOLUTION, relaid=1e9)
    assert seconds(small, CORES) == pytest.approx(product / 10 / 0.8 + 1.0)
    assert seconds(small) == pytest.approx(product / 0.8 / 2)


def test_attention_takes_its_flops_or_its_bytes() -> None:
    assert seconds(Kernel(attention=1e12, memory=1e9)) == pytest.approx(2.0)
    assert seconds(Kernel(attention=1e11, memory=1e9)) == pytest.approx(1.0)


def test_a_device_without_units_for_a_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match="precision=bf16: it has no units for it, but for fp32"):
        seconds(Kernel(1, 1, 1, 1, size=2))
    assert seconds(Kernel(1280, 100, 128, 1, size=2), CORES) > 0
