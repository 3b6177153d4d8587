"""List the official peak FLOP/s of GPUs, dense, from NVIDIA's data sheets and architecture whitepapers.

Where a data sheet gives tensor cores' figures with 2:4 sparsity, the dense ones here are half of them. Those
of bf16 and TF32 accumulate in fp32.
"""

from __future__ import annotations

import re

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
