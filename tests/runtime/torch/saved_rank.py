"""One of two ranks that trains stages, and counts the bytes that autograd really holds at once.

python -m tests.runtime.torch.saved_rank OUT RUN.yaml...     with a launcher's environment variables
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from pkgutil import resolve_name

import torch
from torch import Tensor, nn

from src.config import run_config as configuration
from src.measure.recorder import Recorder
from src.run import files
from src.runtime.common.context import RankContext
from src.runtime.torch.pipeline.stage_module import StageModule
from tests.prepared_data import load_arrays


class Held:
    """Counts the storages that autograd holds, each once; `most` is the most bytes of them at once."""

    def __init__(self, model: nn.Module) -> None:
        self.most = self.now = 0
        self._weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self._holders: Counter[int] = Counter()

    def __enter__(self) -> Held:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: Holder(self, tensor), lambda holder: holder.tensor
        )
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def change(self, tensor: Tensor, by: int) -> None:
        storage = tensor.untyped_storage()
        pointer = storage.data_ptr()
        if pointer in self._weights:
            return
        before = self._holders[pointer]
        self._holders[pointer] += by
        self.now += storage.nbytes() * (bool(self._holders[pointer]) - bool(before))
        self.most = max(self.most, self.now)


class Holder:
    """Stands for a saved tensor as long as autograd needs it."""

    def __init__(self, held: Held, tensor: Tensor) -> None:
        # Not the variable itself, which would hold the graph that holds it.
        self.held, self.tensor = held, tensor.detach()
        held.change(self.tensor, 1)

    def __del__(self) -> None:
        self.held.change(self.tensor, -1)


def main() -> None:
    rank, out = int(os.environ["RANK"]), Path(sys.argv[1])
    train = StageModule.training_step
    most = [0]

    def watched(module: StageModule, *arguments: object) -> None:
        with Held(module.model) as held:
            train(module, *arguments)
        most.append(held.most)

    StageModule.training_step = watched
    for name in sys.argv[2:]:
        most.clear()
        config, folder = configuration.load(Path(name)), out / Path(name).stem
        (folder / str(rank)).mkdir(parents=True, exist_ok=True)
        (folder / files.RANKS).mkdir(exist_ok=True)
        cores = tuple(sorted(os.sched_getaffinity(0)))[:1]
        context = RankContext(config, rank, config.workers, load_arrays(config.dataset), folder, cores)
        recorder = Recorder(config, rank, folder / str(rank), started=time.time(), probes=False)
        resolve_name(config.strategy["entry"])(context, recorder)
        said = recorder.facts["saved_tensors_bytes"]
        (folder / f"{rank}.json").write_text(json.dumps({"said": said, "held": max(most)}))
    os._exit(0)


if __name__ == "__main__":
    main()
