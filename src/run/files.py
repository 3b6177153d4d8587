"""Name every file of a run: its results, and the files by which its processes communicate.

<out>/
  config.yaml metrics.json steps.csv ...      results (docs/metrics.md, "Results")
  checkpoint.pt, checkpoint.npz               the newest state that a resumed run can start from
  checkpoint-<step>.pt, checkpoint-<step>.npz older ones (`checkpoint_keep`; while a run trains, one more)
  profile/rank-<rank>...                      traces of a few steps (`profiler=true`)
  profile/all-ranks.json.gz                   those of all ranks on one clock, and tables of it:
  profile/exchange.csv profile/steps.csv      exchanges by kind, the slowest rank by step
  logs/<process>.log                          everything that a process printed
  ranks/tracked                               parent: which run of MLflow these records are of
  ranks/<process>.end                         process -> parent: its exit status, as it says itself
  ranks/store-<token>                         torch ranks: where they find each other, at one start of the job
  ranks/<rank>/                               one rank's records, merged and removed at the end
    steps.csv epochs.csv record.json timeline.json live_tensors.json
    activities.json                           the profiled steps by the rank's clock
    notes.txt                                 rank -> parent: a text for the person who waits
    phase.txt                                 rank -> parent: what it does before its first step
    mistake.txt                               rank -> parent: the user's mistake, in one sentence
    ready                                     serving process -> parent: it takes part in the job
    exchange.json                             process -> parent: what its backend's exchanges took
    memory.json                               serving process -> coordinator: its memory after imports
    alive                                     rank -> other ranks: locked for as long as it lives
    audit.json audit-<step>.npz               rank -> `src.audit`: what a watched step did
"""

from __future__ import annotations

from pathlib import Path

from src.run.status import Status

CONFIG = "config.yaml"
METRICS = "metrics.json"
STEPS = "steps.csv"
EPOCHS = "epochs.csv"
WORKERS = "workers.csv"
EXCHANGES = "exchange.csv"
TRACE = "trace.csv"
INTERFACES = "interfaces.csv"
NETWORK = "network.json"
ENVIRONMENT = "environment.json"
TIMELINE = "timeline.json"
LIVE_TENSORS = "live_tensors.json"
PREDICTIONS = "predictions.png"
PARTITION = "partition.json"
PLACEMENT = "placement.json"
RESULTS = (
    CONFIG, METRICS, STEPS, WORKERS, EXCHANGES, EPOCHS, TRACE, INTERFACES, ENVIRONMENT,
    NETWORK, PARTITION, PLACEMENT, TIMELINE, LIVE_TENSORS, PREDICTIONS,
)  # fmt: skip

CHECKPOINTS = {"torch": "checkpoint.pt", "tensorflow": "checkpoint.npz"}

# Folder of the traces by the frameworks' profilers.
PROFILE = "profile"
ALL_RANKS = "all-ranks.json.gz"
PROFILED_EXCHANGES = "exchange.csv"
PROFILED_STEPS = "steps.csv"
ACTIVITIES = "activities.json"
# Folder of the processes that measure exchanges before a run; it goes with them.
PROBE = "probe"
LOGS = "logs"
RANKS = "ranks"
TRACKED = "tracked"
RECORD = "record.json"
EXCHANGE = "exchange.json"
REHEARSAL = "rehearsal.json"
NOTES = "notes.txt"
PHASE = "phase.txt"
MISTAKE = f"{Status.MISTAKE}.txt"
READY = "ready"
MEMORY = "memory.json"
AUDITED = "audit.json"
AUDITED_STEP = "audit-{step}.npz"
ALIVE = "alive"


def rank_folder(out: Path, rank: int) -> Path:
    """Return the folder of rank `rank`'s records in the run directory `out`."""
    return out / RANKS / str(rank)


def profile_of(out: Path, rank: int) -> Path:
    """Return the path of rank `rank`'s trace by its framework's profiler, without what that appends."""
    return out / PROFILE / f"rank-{rank}"


def of_every_rank(out: Path, name: str) -> dict[int, Path]:
    """Return the files called `name` of all ranks that have one in the run directory `out`, by rank."""
    paths = {int(path.parent.name): path for path in (out / RANKS).glob(f"*/{name}")}
    return dict(sorted(paths.items()))


def end_path(out: Path, process: str) -> Path:
    """Return the file in which the process called `process` announces its exit status."""
    return out / RANKS / f"{process}.end"


def log_path(out: Path, process: str) -> Path:
    """Return the log of the process called `process`, such as `rank-0`, in the run directory `out`."""
    return out / LOGS / f"{process}.log"


def checkpoint_path(out: Path, framework: str) -> Path:
    """Return the path of the newest checkpoint in the run directory `out`, which `framework` writes."""
    return out / CHECKPOINTS[framework]


def checkpoint_in(out: Path) -> Path | None:
    """Return the path of the checkpoint in the run directory `out`, `None` if there is none yet."""
    paths = (out / name for name in CHECKPOINTS.values())
    return next((path for path in paths if path.exists()), None)


def older_checkpoint(path: Path, step: int) -> Path:
    """Return the path of a checkpoint of `step` steps that is older than the newest one, at `path`."""
    return path.with_name(f"{path.stem}-{step}{path.suffix}")


def older_checkpoints(path: Path) -> list[Path]:
    """Return the paths of the checkpoints that are older than the newest one, at `path`, the latest first."""
    steps = [
        int(number)
        for older in path.parent.glob(f"{path.stem}-*{path.suffix}")
        if (number := older.stem.removeprefix(f"{path.stem}-")).isdecimal()
    ]
    return [older_checkpoint(path, step) for step in sorted(steps, reverse=True)]


def remove_unfinished(out: Path) -> None:
    """Remove the checkpoint that a process was writing into the run directory `out` when it ended."""
    for path in out.glob(".checkpoint*"):
        path.unlink()
