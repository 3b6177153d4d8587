"""Keep from a run's processes what the shell of the user, of a scheduler or of an engine would tell them.

The list of all that leaks in from outside, and what becomes of it. What isn't in it passes on: a user's own
settings of libraries, and proxies, by which ranks download weights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

# By these an MPI takes itself for part of a scheduler's job and asks that for hosts, or its `mpiexec` for
# part of another's; Lightning takes the job's processes for its ranks.
SCHEDULERS = (
    "SLURM_", "SLURMD_", "SRUN_", "SALLOC_", "SBATCH_",
    "PBS_", "LSB_", "LSF_", "COBALT_", "LOADL_", "FLUX_", "ALPS_", "PALS_",
    "PMI_", "PMIX_", "OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "PRTE_LAUNCH", "MPI_LOCAL", "HYDI_",
    "HYDRA_HOST_FILE", "HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP", "HYDRA_RMK", "HYDRA_PROXY", "HYDRA_IFACE",
    "HYDRA_BINDING", "HYDRA_TOPOLIB", "HYDRA_USE_LOCALHOST",
    "I_MPI_HYDRA_", "MPIEXEC_", "MPIRUN_",
)  # fmt: skip
# Sun's and its successors' names of a job have no prefix of their own.
GRID_ENGINE = ("PE_HOSTFILE", "PE", "NSLOTS", "NHOSTS", "MP_HOSTFILE")
# Ray's, for processes of its own.
ENGINES = ("RAY_",)
# Another job's ranks: each of ours gets its own where it needs them.
RANKS = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG",
)  # fmt: skip
# Each would change a training, which then wasn't that of the configuration: Lightning's defaults of its
# trainer's arguments, and the epochs and steps after which Keras stops.
DEFAULTS = ("PL_TRAINER_", "PL_GLOBAL_SEED", "PL_SEED_WORKERS", "KERAS_MAX_", "KERAS_NNX_")
PREFIXES, NAMES = (*SCHEDULERS, *ENGINES, *DEFAULTS, "TORCHELASTIC_"), (*GRID_ENGINE, *RANKS)
FIXED = {
    # gRPC would reach even this host through `http_proxy`; empty, it is none. Other clients don't read it.
    "grpc_proxy": "",
    # Keras trains by the framework of the strategy, and TensorFlow uses Keras 3.
    "KERAS_BACKEND": "tensorflow",
    "TF_USE_LEGACY_KERAS": "0",
}


def inherited(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what a process of a run inherits from `environment`, by default this process's."""
    given = os.environ if environment is None else environment
    passed = {
        name: value for name, value in given.items() if not name.startswith(PREFIXES) and name not in NAMES
    }
    return {**passed, **FIXED}
