"""Find the peak FLOP/s of a device in one precision, by which model FLOPs utilisation is divided.

A single matrix product says little: on one machine the same product gave 75 and 98 GFLOP/s within an hour.
So the best one that any run has measured is kept, in `peaks/` of the user's cache folder, a file for each
device, precision and library. A faster measurement replaces a slower one: a peak only rises.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from src.data.catalog import cache_folder
from src.measure.rank_record import RankRecord
from src.run.tables import write_text

# A first measurement, and the one of a device that is known: seconds that products are repeated for, and how
# many there are at least. A device's clock rises, and its neighbours rest, only now and then.
FIRST, AGAIN = (2.0, 5), (0.1, 3)
# Official peaks are dense, from NVIDIA's data sheets and architecture whitepapers. Where a data sheet gives
# tensor cores' figures with 2:4 sparsity, the dense ones here are half of them. Those of bf16 and TF32
# accumulate in fp32.
# Names as NVML and torch give them -> teraFLOP/s by precision; the source. A name must match as a whole: a
# MIG instance, a laptop's GPU or a "Ti" is another device. GPUs before Ampere have neither TF32 nor bf16.
PEAKS: tuple[tuple[str, dict[str, float], str], ...] = (
    (r"Tesla P100-SXM2.*", {"fp32": 10.6}, "Tesla P100 data sheet, 2016"),
    (r"Tesla P100-PCIE.*", {"fp32": 9.3}, "Tesla P100 data sheet, 2016"),
    (r"Tesla V100-SXM[23].*", {"fp32": 15.7}, "V100 data sheet, January 2020"),
    (r"Tesla V100-PCIE.*", {"fp32": 14.0}, "V100 data sheet, January 2020"),
    (r"Tesla V100S-PCIE.*", {"fp32": 16.4}, "V100 data sheet, January 2020"),
    (r"(Tesla|NVIDIA) T4", {"fp32": 8.1}, "T4 data sheet, 2018"),
    (r"(NVIDIA )?GeForce RTX 2080 Ti", {"fp32": 13.4}, "Turing whitepaper, 2018, reference board"),
    (
        r"(NVIDIA )?A100-(SXM4|SXM|PCIE)-(40|80)GB|NVIDIA A100 80GB PCIe",
        {"fp32": 19.5, "tf32": 156.0, "bf16": 312.0},
        "A100 data sheet, 2021",
    ),
    (r"NVIDIA A10", {"fp32": 31.2, "tf32": 62.5, "bf16": 125.0}, "A10 data sheet, 2021"),
    (
        r"(NVIDIA )?GeForce RTX 3090",
        {"fp32": 35.6, "tf32": 35.6, "bf16": 71.0},
        "GA102 whitepaper, 2020, appendix A",
    ),
    (r"NVIDIA L4", {"fp32": 30.3, "tf32": 60.0, "bf16": 121.0}, "L4 data sheet, 2023"),
    (
        r"(NVIDIA )?GeForce RTX 4090",
        {"fp32": 82.6, "tf32": 82.6, "bf16": 165.2},
        "Ada whitepaper, 2022, appendix A",
    ),
    (r"NVIDIA H100 80GB HBM3", {"fp32": 67.0, "tf32": 494.5, "bf16": 989.5}, "H100 SXM data sheet, 2023"),
    (r"NVIDIA H100 PCIe", {"fp32": 51.0, "tf32": 378.0, "bf16": 756.5}, "H100 PCIe data sheet, 2022"),
    (r"NVIDIA H200", {"fp32": 67.0, "tf32": 494.5, "bf16": 989.5}, "H200 SXM data sheet, 2023"),
)


@dataclass(frozen=True)
class PeakKey:
    """The device, precision and library that a peak is of.

    Attributes:
        device: the processor's or GPU's name.
        cores: cores of a CPU device, 0 of a GPU.
        precision: `fp32`, `tf32` or `bf16`.
        library: what multiplies, with its version.
    """

    device: str
    cores: int
    precision: str
    library: str

    @property
    def label(self) -> str:
        """Return the device's name, and of a CPU how many cores a device has."""
        plural = "s" if self.cores > 1 else ""
        return f"{self.device} ({self.cores} core{plural})" if self.cores else self.device


def facts(key: PeakKey, multiply: Callable[[], float]) -> RankRecord:
    """Return the peak of a device for a rank's record, measured now and compared with the kept one.

    A GPU's official peak is used where it is known and no product was faster, as Chowdhery 2022 (appendix B)
    defines model FLOPs utilisation. `multiply` multiplies two matrices once, waits for the product, and
    returns the FLOP of that.
    """
    measured = raised(key, lambda known: fastest(multiply, *(FIRST if known is None else AGAIN)))
    known = None if key.cores else official(key.device, key.precision)
    source = f"measured: the fastest {key.precision} matrix product of {key.library} on this machine"
    peak = measured
    if known is not None and known[0] >= measured:
        peak, source = known[0], f"official: {known[1]}, {key.precision}, dense"
    return {
        "peak_flops": peak,
        "peak_source": source,
        "peak_device": key.label,
        "peak_precision": key.precision,
        "peak_measured_flops": measured,
        "peak_official_flops": None if known is None else known[0],
    }


def official(name: str, precision: str) -> tuple[float, str] | None:
    """Return the official FLOP/s of the GPU called `name`, and their source; `None` if they aren't known.

    Args:
        name: as NVML gives it.
        precision: `fp32` (without tensor cores), `tf32` or `bf16`.
    """
    for pattern, tera, source in PEAKS:
        if re.fullmatch(pattern, name) and precision in tera:
            return tera[precision] * 1e12, f"NVIDIA, {source}"
    return None


def fastest(multiply: Callable[[], float], seconds: float, products: int) -> float:
    """Return the FLOP/s of the fastest product within `seconds`, of at least so many `products`."""
    # The first product fetches code and memory.
    multiply()
    best, end = 0.0, time.perf_counter() + seconds
    done = 0
    while done < products or time.perf_counter() < end:
        start = time.perf_counter()
        flop = multiply()
        best = max(best, flop / (time.perf_counter() - start))
        done += 1
    return best


def raised(key: PeakKey, measure: Callable[[float | None], float]) -> float:
    """Return the larger one of the kept FLOP/s and a new measurement, and keep it.

    A file that is damaged is as none. Without a folder that can be written the measurement alone counts.
    `measure` measures the FLOP/s, given the kept ones or `None`.
    """
    path = _path(key)
    measured = measure(_kept(path))
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Another rank may have kept more meanwhile.
            kept = _kept(path)
            if kept is not None and kept >= measured:
                return kept
            content = {**asdict(key), "flops": measured, "measured_at": time.time()}
            write_text(path, json.dumps(content, indent=1))
    return measured


def _path(key: PeakKey) -> Path:
    text = json.dumps(asdict(key), sort_keys=True)
    return cache_folder() / "peaks" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _kept(path: Path) -> float | None:
    """Return the FLOP/s that a file holds, `None` where it is absent or damaged."""
    try:
        flops = json.loads(path.read_text())["flops"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    known = isinstance(flops, int | float) and math.isfinite(flops) and flops > 0
    return float(flops) if known else None
