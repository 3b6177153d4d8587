"""Build one cell's model and read its checkpoint, before any rank is started.

`python -m src.preflight CONFIG ANSWER` is run by the parent (`src.launch.supervise.inspection`), which
imports no framework. CONFIG is the path of the cell's resolved configuration. ANSWER is written as JSON:
`notes` with lines for the user, `seconds` that looking took, `compared` with the number of samples by which
stages were compared with the uncut model, if they were, `facts` with what a Keras model does in training, as
`RankRecord` has it (of a torch model the ranks find it themselves); and if not all is well, `mistake` with a
sentence on what the user has typed or named, or `failure` with one on an error of the user's own code.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from src.config import Config, ConfigError, import_paths, load, own_training
from src.data import prepared
from src.launch.supervise import inspection
from src.machine import process
from src.machine.devices import usable_cores
from src.run.status import Status, of_error
from src.run.tables import write_text
from src.run.variables import PARENT


def main() -> None:
    """Look into the configuration, and answer."""
    if PARENT in os.environ:
        process.die_with(int(os.environ[PARENT]))
    started = time.monotonic()
    answer: dict[str, Any] = {"notes": []}
    try:
        config = load(Path(sys.argv[1]))
        answer |= look_into(config, Path(sys.argv[1]).parent, answer["notes"].append)
    except ConfigError as mistake:
        answer["mistake"] = str(mistake)
    except BaseException as error:
        # Too little memory is a result, which the run itself is to have.
        if of_error(error) is Status.OUT_OF_MEMORY:
            answer["notes"].append("note: there is too little memory to look into the model before it trains")
        else:
            answer["failure"] = import_paths.describe_error(error)
    answer["seconds"] = time.monotonic() - started
    write_text(Path(sys.argv[2]), json.dumps(answer))
    _leave_mpi()
    # Threads of a framework may block an orderly exit.
    os._exit(0)


def look_into(config: Config, folder: Path, note: Callable[[str], None] = print) -> dict[str, Any]:
    """Import the strategy, build the model, try the task and read the checkpoint of a run, on the CPU.

    Where the strategy cuts the model, the cut model is compared with it. A model of the project's own is
    built without data, and that is all, unless its layers are split. Returned are `compared` and `facts` of
    the answer, where there are any. `folder` takes the place of the run's directory; `note` is told what the
    user should know.

    Raises:
        ConfigError: for a path that names nothing, options that a model doesn't take, sizes of a model that
            don't go together, a task that isn't what it says, a cut that changes the model, or a checkpoint
            that the run can't go on from.
        BaseException: whatever the user's own code raises.
    """
    from src.runtime.common import seed_check
    from src.runtime.common.context import RankContext

    for key in ("entry", "serve"):
        path = config.strategy.get(key)
        # The project's own are known, and one under mpiexec would start MPI here.
        if path is not None and not import_paths.is_own(path):
            import_paths.resolve(f"strategy.{key}", path)
    arrays = prepared.load(config.dataset)
    context = RankContext(config, 0, 1, arrays, folder, (0,))
    found: dict[str, Any] = {}
    if config.framework == "torch":
        import torch

        from src.runtime.torch import checkpoint, device_check, setup, task_check
        from src.runtime.torch.tensor import finding

        own = inspection.has_own(config)
        if not own and config.model.get("check_sizes"):
            setup.check_sizes(context)
        if not own and config.degrees.tensor == 1:
            return found
        model = setup.build(context, note if own else _ignore)
        if own:
            seed_check.check_seeds(
                config, setup.weights(model), setup.weights(setup.build(context, _ignore)), note
            )
        if config.batchnorm == "sync":
            from src.runtime.torch.lightning import sync_batchnorm

            sync_batchnorm.check(model)
        if own_training.is_own(config):
            from src.runtime.torch.lightning import own_check

            for text in getattr(arrays, "notes", ()):
                note(text)
            own_check.check_training(context, model, note)
        elif own:
            task_check.check_task(context, model, note)
            device_check.check_device(context, model, note)
        if config.resume is not None:
            checkpoint.check_model(checkpoint.read(config, arrays.train_samples), model)
        if config.degrees.shard > 1 and not config.cuts:
            from src.runtime.torch.sharding import shard_check

            shard_check.check_sharding(context, model)
        if config.degrees.tensor > 1:
            # The model isn't whole afterwards, and what is cut are its parts.
            finding.rehearse(context, model)
        if config.cuts:
            from src.runtime.torch.pipeline import cut_check

            torch.set_num_threads(len(usable_cores()))
            found["compared"] = cut_check.check_cut(context, model)
    else:
        from src.runtime.tensorflow import checkpoint as keras_checkpoint
        from src.runtime.tensorflow import model_check
        from src.runtime.tensorflow import setup as keras_setup

        keras_model = keras_setup.build(context)
        again = keras_setup.weights(keras_setup.build(context))
        seed_check.check_seeds(config, keras_setup.weights(keras_model), again, note)
        found["facts"] = model_check.check_model(context, keras_model)
        if config.resume is not None:
            keras_checkpoint.check_model(keras_checkpoint.read(context), keras_model)
    return found


def _ignore(_: str) -> None:
    """Tell nobody what is said of a model that is built for the second time."""


def _leave_mpi() -> None:
    """Finalize MPI if the user's code has started it, by importing mpi4py; else its shared memory stays."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()


if __name__ == "__main__":
    main()
