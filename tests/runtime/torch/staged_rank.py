"""One of two ranks that trains its stage twice: with transfers through the host, and without.

python -m tests.runtime.torch.staged_rank CONFIG.yaml     with a launcher's environment variables
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from src.config import Config
from src.config import run_config as configuration
from src.partition.torch import cost, transfer
from src.runtime.torch.pipeline import pipedream_module, stage_module, timed_stage
from src.runtime.torch.pipeline.pipedream_module import PipeDreamModule
from src.runtime.torch.pipeline.stage_module import StageModule
from tests.runtime.torch.agreed import leave
from tests.runtime.torch.callback_rank import PATIENCE, started

buffer = transfer._host_buffer


def trained(config: Config, *, staged: bool) -> tuple[dict[str, Tensor], int]:
    """The stage's tensors after the training, and how often the host's memory took part."""
    made: list[StageModule] = []
    staging: list[Tensor] = []

    def keep(module: type[StageModule], *arguments: Any, **options: Any) -> StageModule:
        made.append(module(*arguments, **options))
        return made[-1]

    def count(tensor: Tensor) -> Tensor:
        staging.append(tensor)
        return buffer(tensor)

    with (
        mock.patch.object(transfer, "stages_through_host", lambda _: staged),
        mock.patch.object(timed_stage, "stages_through_host", lambda _: staged),
        mock.patch.object(transfer, "_host_buffer", count),
        mock.patch.object(stage_module, "StageModule", partial(keep, StageModule)),
        mock.patch.object(pipedream_module, "PipeDreamModule", partial(keep, PipeDreamModule)),
        tempfile.TemporaryDirectory() as folder,
    ):
        resolve_name(config.strategy["entry"])(*started(config, Path(folder)))
    return made[0].model.state_dict(), len(staging)


def main() -> None:
    dist.init_process_group("gloo", timeout=PATIENCE)
    # Equality is tested, not speed: costs are measured once.
    cost.ROUNDS = cost.LEAST_ROUNDS = cost.LINK_ROUNDS = 1
    config = configuration.load(Path(sys.argv[1]))
    (plain, without), (staged, times) = (trained(config, staged=staged) for staged in (False, True))
    assert without == 0 and times > 0, (without, times)
    for name, value in plain.items():
        assert torch.equal(value, staged[name]), name
    leave()


if __name__ == "__main__":
    main()
