"""A device's peak: the best of many products, kept for the machine, beside the official one."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from src.machine.devices import processor
from src.measure import peak
from src.measure.peak import PeakKey, official, raised
from src.runtime.common.context import RankContext
from src.runtime.torch import peak as torch_peak
from tests.support import config

CPU = PeakKey("Example CPU", 1, "fp32", "torch 2.14.1")
A100 = PeakKey("NVIDIA A100-SXM4-80GB", 0, "bf16", "torch 2.14.1")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCALEGUIDE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "peaks"


def test_a_peak_only_rises() -> None:
    found = [raised(CPU, lambda _, flops=flops: flops) for flops in (90e9, 75e9, 98e9, 80e9)]
    assert found == [90e9, 90e9, 98e9, 98e9]


def test_a_known_device_is_measured_again_with_what_is_known() -> None:
    told: list[float | None] = []
    for flops in (90e9, 75e9):
        raised(CPU, lambda known, flops=flops: told.append(known) or flops)
    assert told == [None, 90e9]


@pytest.mark.parametrize(
    "other",
    [
        PeakKey("Another CPU", 1, "fp32", "torch 2.14.1"),
        PeakKey("Example CPU", 2, "fp32", "torch 2.14.1"),
        PeakKey("Example CPU", 1, "bf16", "torch 2.14.1"),
        PeakKey("Example CPU", 1, "fp32", "torch 2.15.0"),
    ],
    ids=["name", "cores", "precision", "library"],
)
def test_each_device_precision_and_library_has_its_own(other: PeakKey) -> None:
    raised(CPU, lambda _: 90e9)
    assert raised(other, lambda _: 1e9) == 1e9
    assert raised(CPU, lambda _: 1e9) == 90e9


@pytest.mark.parametrize(
    "text", ["", '{"flops": 9', '{"flops": NaN}', '{"flops": -1}', '{"flops": "many"}', "[]"]
)
def test_a_damaged_file_is_measured_again(cache: Path, text: str) -> None:
    raised(CPU, lambda _: 90e9)
    (file,) = cache.glob("*.json")
    file.write_text(text)
    assert raised(CPU, lambda known: 80e9 if known is None else 1.0) == 80e9
    assert json.loads(file.read_text())["flops"] == 80e9


def test_of_many_ranks_at_once_the_fastest_is_kept(cache: Path) -> None:
    speeds = [float(speed) for speed in range(1, 41)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda speed: raised(CPU, lambda _: speed), [*speeds[20:], *speeds[:20]]))
    (file,) = cache.glob("*.json")
    assert json.loads(file.read_text())["flops"] == 40.0


def test_without_a_folder_to_keep_it_in_the_measurement_counts(cache: Path) -> None:
    cache.parent.parent.mkdir(exist_ok=True)
    cache.parent.write_text("no folder")
    assert raised(CPU, lambda _: 90e9) == 90e9


def test_the_fastest_product_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    # A first one that doesn't count, and products of 4, 2 and 5 seconds.
    durations, now = iter([100.0, 4.0, 2.0, 5.0]), [0.0]

    def multiply() -> float:
        now[0] += next(durations)
        return 8.0

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    assert peak.fastest(multiply, seconds=10.0, products=1) == 4.0


def test_the_official_peak_counts_unless_a_product_was_faster() -> None:
    # A device that is known is measured briefly.
    raised(A100, lambda _: 1.0)
    facts = peak.facts(A100, lambda: 1.0)
    assert (facts["peak_flops"], facts["peak_official_flops"]) == (312e12, 312e12)
    assert facts["peak_source"] == "official: NVIDIA, A100 data sheet, 2021, bf16, dense"
    assert 0 < facts["peak_measured_flops"] < 312e12
    # A device that calls itself so and isn't one.
    facts = peak.facts(A100, lambda: 1e18)
    assert facts["peak_flops"] == facts["peak_measured_flops"] > 312e12
    assert facts["peak_source"].startswith("measured: the fastest bf16 matrix product of torch 2.14.1")


@pytest.mark.parametrize(
    ("name", "precision", "tera"),
    [
        ("Tesla V100-SXM2-16GB", "fp32", 15.7),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("Tesla T4", "fp32", 8.1),
        ("Tesla T4", "tf32", None),
        ("NVIDIA A100-SXM4-40GB", "tf32", 156.0),
        ("NVIDIA A100 80GB PCIe", "bf16", 312.0),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("NVIDIA A10", "bf16", 125.0),
        ("NVIDIA A10G", "bf16", None),
        ("NVIDIA L4", "tf32", 60.0),
        ("NVIDIA L40", "tf32", None),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.5),
        ("NVIDIA H100 PCIe", "bf16", 756.5),
        ("NVIDIA H200", "tf32", 494.5),
        ("NVIDIA GeForce RTX 2080 Ti", "fp32", 13.4),
        ("NVIDIA GeForce RTX 3090", "bf16", 71.0),
        ("NVIDIA GeForce RTX 3090 Ti", "bf16", None),
        ("NVIDIA GeForce RTX 4090", "fp32", 82.6),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "fp32", None),
        ("Tesla P100-PCIE-16GB", "fp32", 9.3),
    ],
)
def test_official_peaks(name: str, precision: str, tera: float | None) -> None:
    found = official(name, precision)
    assert (None if found is None else found[0] / 1e12) == (None if tera is None else pytest.approx(tera))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_runs_peak_is_in_its_own_precision(precision: str) -> None:
    # A device that is known is measured briefly.
    raised(PeakKey(processor(), 1, precision, f"torch {torch.__version__}"), lambda _: 1.0)
    chosen = config("strategy=single", f"precision={precision}")
    multiplied: list[torch.dtype] = []
    product = torch.mm

    def watched(left: torch.Tensor, *others: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        multiplied.append(left.dtype)
        return product(left, *others, **named)

    context = RankContext(chosen, 0, 1, SimpleNamespace(), Path(), (0,))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch, "mm", watched)
        facts = torch_peak.facts(context, torch.device("cpu"))
    assert facts["peak_precision"] == precision
    assert set(multiplied) == {torch.bfloat16 if precision == "bf16" else torch.float32}
    assert facts["peak_device"].endswith("(1 core)")
    assert facts["peak_official_flops"] is None


@pytest.mark.parametrize(
    ("capability", "convolutions", "products", "expected"),
    [
        ((7, 5), True, True, "fp32"),
        ((8, 0), True, False, "tf32"),
        ((8, 0), False, True, "tf32"),
        ((9, 0), False, False, "fp32"),
    ],
)
def test_tf32_is_named_where_a_gpu_has_it_and_torch_allows_it(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    convolutions: bool,
    products: bool,
    expected: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if products else "highest")
    try:
        with torch.backends.cudnn.flags(allow_tf32=convolutions):
            assert torch_peak.computing_precision("fp32", torch.device("cuda", 0)) == expected
            assert torch_peak.computing_precision("bf16", torch.device("cuda", 0)) == "bf16"
    finally:
        torch.set_float32_matmul_precision(before)
