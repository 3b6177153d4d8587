"""What was believed of an A100 before anything was measured holds for a table that was not looked at then."""

from __future__ import annotations

import pytest

from src.predict.calibrate import Fit
from src.predict.memory import fits, predicted_bytes
from src.predict.row import parse
from src.predict.step import Step

COMMON = {
    "device": "a100_80gb", "devices_per_node": "8", "network": "infiniband_hdr", "precision": "fp16",
    "model": "transformer", "sequence": "2048", "vocabulary": "51200", "tensor": "8",
}  # fmt: skip
# Korthikanti 2022, table 5: layers, features, heads, devices, stages, stages of a device, samples of a step
# and of a micro-batch; seconds with all activations computed again, and with their sequence parallelism and
# selective recomputation.
TABLE = {
    "22B": (48, 6144, 64, 8, 1, 1, 4, 4, 1.42, 1.10),
    "175B": (96, 12288, 96, 64, 8, 3, 64, 1, 18.13, 13.75),
    "530B": (105, 20480, 128, 280, 35, 3, 280, 1, 49.05, 37.83),
    "1T": (128, 25600, 160, 512, 64, 1, 512, 1, 94.42, 71.49),
}
COLUMNS = (
    "layers",
    "hidden",
    "heads",
    "devices",
    "pipeline",
    "virtual_stages",
    "global_batch",
    "micro_batch",
)


@pytest.mark.parametrize("recompute", ["full", "selective"])
@pytest.mark.parametrize("name", list(TABLE))
def test_a_step_of_megatron(name: str, recompute: str) -> None:
    *numbers, full, selective = TABLE[name]
    cells = dict(zip(COLUMNS, map(str, numbers), strict=True))
    parallel = str(recompute == "selective")
    step = Step(parse({**COMMON, **cells, "recompute": recompute, "sequence_parallel": parallel}))
    seconds = full if recompute == "full" else selective
    assert Fit().parts(step).seconds == pytest.approx(seconds, rel=0.08)
    # They were trained.
    held = predicted_bytes(step)
    assert held is not None and fits(step, held)
