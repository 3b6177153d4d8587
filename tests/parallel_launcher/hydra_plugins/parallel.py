"""A launcher plugin of Hydra that runs all jobs of a sweep at once, as hydra-joblib-launcher does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import joblib
from hydra.core.config_store import ConfigStore
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

NODE = {"_target_": "hydra_plugins.parallel.ParallelLauncher"}
ConfigStore.instance().store(group="hydra/launcher", name="parallel", node=NODE, provider="tests")


class ParallelLauncher(Launcher):
    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._context, self._config, self._task = hydra_context, config, task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        state = Singleton.get_state()
        joblib.Parallel(n_jobs=len(job_overrides), backend="loky")(
            joblib.delayed(run)(self._context, self._config, self._task, list(words), number, state)
            for number, words in enumerate(job_overrides, initial_job_idx)
        )
        returned = JobReturn(status=JobStatus.COMPLETED)
        returned.return_value = None
        return [returned for _ in job_overrides]


def run(
    context: HydraContext, config: DictConfig, task: TaskFunction, words: list[str], number: int, state: Any
) -> None:
    setup_globals()
    Singleton.set_state(state)
    sweep = context.config_loader.load_sweep_config(config, words)
    with open_dict(sweep):
        sweep.hydra.job.id = sweep.hydra.job.num = number
    Path(str(sweep.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
    run_job(
        task_function=task,
        config=sweep,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
        hydra_context=context,
    )
