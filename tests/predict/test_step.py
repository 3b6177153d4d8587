"""A step's parts, on numbers that were worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from src.config.mistakes import ConfigError
from src.predict.constants import Constants
from src.predict.row import Row, parse
from src.predict.step import Step, expected_maximum

PLAIN = Constants().changed(
    {"straggling": 0.0, "latency_seconds": 0.0, "exposed": 1.0, "imbalance": 0.0, "fixed_seconds": 0.0}
)
RATE = {"device": "k80", "devices": "1", "model": "resnet", "one_device_samples_per_second": "50"}


def step(**cells: object) -> Step:
    return Step(parse({**RATE, "global_batch": "100", **{key: str(value) for key, value in cells.items()}}))


def test_one_device_takes_what_it_was_measured_at() -> None:
    parts = step().parts(PLAIN)
    assert (parts.compute, parts.exchange, parts.bubble, parts.other) == (2.0, 0.0, 0.0, 0.0)


def test_a_ring_within_a_node() -> None:
    parts = step(devices=4, global_batch=400, gradient_bytes=1e9, exchange="ring").parts(PLAIN)
    # 2 (k - 1) / k of the gradients, at half of PCIe's 15.75 GB/s (Patarasuk & Yuan 2009).
    assert parts.exchange == pytest.approx(1.5e9 / (15.75e9 * 0.5))
    assert parts.compute == 2.0


def test_what_a_backward_pass_hides() -> None:
    hidden = PLAIN.changed({"exposed": 0.25})
    parts = step(devices=4, global_batch=400, gradient_bytes=1e9).parts(hidden)
    assert parts.exchange == pytest.approx(0.25 * 1.5e9 / (15.75e9 * 0.5))


def test_a_pipeline_with_recomputation() -> None:
    parts = step(devices=4, pipeline=4, micro_batch=10, schedule="gpipe", recompute="full").parts(PLAIN)
    # 4/3 of the work on four devices, and three of thirteen turns are idle.
    assert parts.compute == pytest.approx(2.0 * 4 / 3 / 4)
    assert parts.bubble == pytest.approx(parts.compute * 3 / 10)
    last = step(devices=4, pipeline=4, micro_batch=10, schedule="gpipe", recompute="except_last")
    assert last.parts(PLAIN).compute == pytest.approx(2.0 * (1 + 0.9 / 3) / 4)


def test_a_given_partition_decides_how_uneven_stages_are() -> None:
    parts = step(devices=2, pipeline=2, micro_batch=0.01, schedule="1f1b", partition="3 1").parts(PLAIN)
    assert parts.seconds == pytest.approx(2.0 * 3 / 4, rel=1e-3)


def test_real_images_are_read_by_a_node_for_all_of_its_devices() -> None:
    read = step(devices=2, global_batch=200, gradient_bytes=1, input="real", image_size=1000)
    assert read.parts(PLAIN).other == pytest.approx(200 * PLAIN.input_seconds)


def test_a_transformers_products_take_their_flops_at_the_peak() -> None:
    row = {
        "device": "a100_80gb", "devices": "1", "model": "transformer", "layers": "32", "hidden": "4096",
        "heads": "32", "sequence": "2048", "global_batch": "8", "precision": "bf16", "flash_attention": "1",
    }  # fmt: skip
    # Memory is so fast that products alone count.
    ideal = replace(
        PLAIN, gemm_efficiency=1.0, gemm_inner=1e-9, memory_efficiency=1e9, attention_efficiency=1.0
    )
    made = Step(parse(row))
    # 6 FLOPs for each parameter of the products and token, and attention to half of the tokens: 4 s h
    # FLOPs forward and 2.5 as many backward, halved.
    tokens, products = 8 * 2048, 12 * 32 * 4096**2
    flops = tokens * (6 * products + 3.5 * 32 * 2 * 2048 * 4096)
    assert made.parts(ideal).compute == pytest.approx(flops / 312e12, rel=0.01)
    assert made.shapes.parameters == 32 * (12 * 4096**2 + 4 * 4096)
    full = Step(parse({**row, "recompute": "full"})).parts(ideal).compute
    assert full == pytest.approx(
        flops / 312e12 * (1 + (2 * products + 64 * 2048 * 4096) * tokens / flops), rel=0.01
    )


def test_the_expected_greatest_of_normal_variables() -> None:
    # Blom 1958; 0.5642 and 1.4236 exactly (order statistics of 2 and 8).
    assert expected_maximum(1) == 0.0
    assert expected_maximum(2) == pytest.approx(0.5642, abs=0.03)
    assert expected_maximum(8) == pytest.approx(1.4236, abs=0.02)


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        ({"device": "a100"}, "device=a100: nobody has described it"),
        ({"devices": "16"}, "network: is needed"),
        ({"devices": "6", "pipeline": "4"}, "can't be divided"),
        ({"devices": "8", "data": "3"}, "isn't data=3"),
        ({"devices": "2"}, "gradient_bytes: is needed"),
        (
            {
                "layers": "2",
                "hidden": "128",
                "sequence": "8",
                "precision": "bf16",
                "one_device_samples_per_second": "",
            },
            "precision=bf16: k80 has no units for it, but for fp32",
        ),
        ({"devices": "2", "pipeline": "2", "schedule": "zbv", "virtual_stages": "4"}, "zbv has 2 a device"),
        ({"virtual_stages": "2"}, "virtual_stages=2: needs a pipeline"),
        ({"precision": "fp8"}, "precision=fp8: must be one of .*; did you mean fp"),
        ({"devices": "0"}, "devices=0: should be greater than or equal to 1"),
        ({"devices": "x"}, "devices=x: should be a valid integer"),
        ({"global_batch": "nan"}, "global_batch=nan: should be"),
        ({"one_device_samples_per_second": ""}, "needs one_device_samples_per_second"),
        ({"devices": "2", "pipeline": "2", "schedule": "zigzag"}, "schedule=zigzag: there are gpipe"),
        ({"devices": "2", "pipeline": "2", "partition": "1 2 3"}, "has 3 stages"),
        ({"device": ""}, "device: is needed"),
    ],
)
def test_what_a_row_can_t_have_is_a_line(cells: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        Step(parse({**RATE, "global_batch": "100", **cells})).parts(PLAIN)


def test_a_table_that_calls_shards_data_is_understood() -> None:
    row = Row(device="a100_80gb", devices=8, model="m", global_batch=8, data=8, shard=8,
              one_device_samples_per_second=1.0, gradient_bytes=1.0)  # fmt: skip
    assert (Step(row).layout.data, Step(row).layout.shard) == (1, 8)
