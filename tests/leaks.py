"""What people's shells have set, all at once: nothing of it may reach a run."""

from __future__ import annotations

import json
from pathlib import Path

# Port 9 discards: nobody answers there.
NOWHERE = "http://127.0.0.1:9"
PROXIES = {
    form(f"{kind}_proxy"): NOWHERE for kind in ("http", "https", "all") for form in (str.lower, str.upper)
}
SCHEDULERS = {
    "SLURM_JOB_ID": "7", "SLURM_JOBID": "7", "SLURM_NTASKS": "64", "SLURM_NODELIST": "none[1-4]",
    "SLURM_NNODES": "4", "SLURM_JOB_NODELIST": "none[1-4]", "SLURM_TASKS_PER_NODE": "16(x4)",
    "SLURM_PROCID": "3", "SLURM_LOCALID": "3", "SLURM_JOB_NAME": "interactive",
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "PBS_NODEFILE": "/nowhere/nodes", "PBS_JOBID": "7.head",
    "HYDRA_HOST_FILE": "/nowhere/hosts", "HYDRA_BOOTSTRAP": "slurm", "HYDRA_LAUNCHER": "slurm",
    "LSB_MCPU_HOSTS": "none1 4 none2 4", "PE_HOSTFILE": "/nowhere", "PMI_RANK": "3", "PMI_SIZE": "64",
    "PMIX_RANK": "3", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "64",
}  # fmt: skip
CLUSTER = {"worker": ["10.255.255.1:1"] * 2}
RANKS = {
    "RANK": "5", "LOCAL_RANK": "5", "WORLD_SIZE": "7", "MASTER_ADDR": "10.255.255.1", "MASTER_PORT": "1",
    "TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 1}}),
}  # fmt: skip
KERAS = {"KERAS_BACKEND": "torch", "KERAS_MAX_EPOCHS": "1", "KERAS_MAX_STEPS_PER_EPOCH": "1"}
LIGHTNING = {"PL_TRAINER_LIMIT_TRAIN_BATCHES": "1", "PL_TRAINER_GRADIENT_CLIP_VAL": "1e-6"}
KERAS_JSON = {"floatx": "float16", "epsilon": 1e-2, "backend": "jax", "image_data_format": "channels_first"}


def everything(folder: Path) -> dict[str, str]:
    """Return all of these variables; a `keras.json` that changes every model is written below `folder`."""
    home = folder / "keras-home"
    home.mkdir(exist_ok=True)
    (home / "keras.json").write_text(json.dumps(KERAS_JSON))
    return {**PROXIES, **SCHEDULERS, **RANKS, **KERAS, **LIGHTNING, "KERAS_HOME": str(home)}
