"""One of two ranks that splits models, rightly and wrongly, and writes how each proof ends.

    python -m tests.runtime.torch.tensor.proof_rank CASES      with a launcher's environment variables

CASES is a folder with `<name>.yaml`, a configuration each; `<name>-<rank>.txt` are written beside them. A
name that begins with one of `CHANGES` has that made before.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest import mock

import torch.distributed as dist
from torch import nn

from src.config import ConfigError
from src.config import run_config as configuration
from src.runtime.torch import mesh, setup
from src.runtime.torch.tensor.group import MeshTensorGroup, TensorGroup
from src.runtime.torch.tensor.tensor_module import TensorModule
from tests.runtime.torch.agreed import leave
from tests.runtime.torch.callback_rank import PATIENCE, started

split = TensorGroup.split


def split_swapped(group: TensorGroup, parameter: nn.Parameter, dim: int) -> nn.Parameter:
    """The last rank has the first inputs of a layer."""
    return split(group, parameter if dim == 0 else nn.Parameter(parameter.flip(1)), dim)


CHANGES: Mapping[str, Callable[[], object]] = {
    "missing": lambda: mock.patch.object(MeshTensorGroup, "sum", lambda *_: None),
    "swapped": lambda: mock.patch.object(TensorGroup, "split", split_swapped),
}


def outcome(path: Path) -> str:
    """What a rank ends with: the sentence of a refusal, or what was proven."""
    config = configuration.load(path)
    change = CHANGES.get(path.stem.partition("-")[0])
    with tempfile.TemporaryDirectory() as folder:
        context, recorder = started(config, Path(folder))
        device = setup.root_device(context)
        with change() if change else mock.patch.object(sys, "path", sys.path):  # type: ignore[attr-defined]
            try:
                module = TensorModule(context, recorder, mesh.make(context, device), device)
            except ConfigError as error:
                return str(error)
    return "proven" + ", but for draws" * module._group.region.draws


def main() -> None:
    dist.init_process_group("gloo", timeout=PATIENCE)
    for path in sorted(Path(sys.argv[1]).glob("*.yaml")):
        path.with_name(f"{path.stem}-{dist.get_rank()}.txt").write_text(outcome(path))
    leave()


if __name__ == "__main__":
    main()
