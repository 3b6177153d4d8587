"""Say of each key of a run, once, what it changes, where it shows, and what it may hold.

Its default stands in `conf/config.yaml`, or in the file of a choice. What follows from what a key changes:

| changes | runs that differ in it are | with a ratio | in labels |
| --- | --- | --- | --- |
| `WORK`: what is computed of a sample | of different configurations | no | yes |
| `TRAINING`: how it is learned, and from how many samples | of different configurations | yes | yes |
| `SPEED`: how fast that is done | of different configurations | yes | yes |
| `HARDWARE`: the class of devices and links | of different configurations | if a study says so | yes |
| `EXTENT`: from where to where it goes, when it is evaluated | different, of one configuration | yes | no |
| `PLACE`: where it runs, and where its results go | the same run | yes | no |
| `WATCH`: how it is watched, and kept going | the same run | yes | no |
| `DESCRIPTION`: nothing; it describes a choice | the same run | yes | no |

A run may take the place of the same run in a directory (`src.run.directory`); a run's name tells different
ones apart (`src.config.compose`). Labels and ratios are those of a study's tables (`src.report`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from src.config.rule import Rule

GROUPS = ("strategy", "model", "dataset", "hardware", "task")


class Changes(Enum):
    """A part of a run that another value of a key changes."""

    WORK = "what is computed of a sample"
    TRAINING = "how it is learned from"
    SPEED = "how fast that is done"
    HARDWARE = "the class of devices and links"
    EXTENT = "from where to where a run goes"
    PLACE = "where it runs and where its results go"
    WATCH = "how it is watched and kept going"
    DESCRIPTION = "nothing: it describes a choice"


# Runs that differ in keys of these are of different configurations.
CONFIGURATION = (Changes.WORK, Changes.TRAINING, Changes.SPEED, Changes.HARDWARE)


@dataclass(frozen=True)
class Key:
    """A key of a run: its role, its rule, and where it shows.

    Attributes:
        changes: what another value changes.
        rule: what it may hold; `None` where its default and `allowed` of the choice's file say so.
        named: how it stands in the name of a run that has another value than the default: `short`, as
            `-w2`, `long`, as `-<key>=<value>`, or not at all.
        column: whether tables have a column of it, so that labels don't repeat it.
        fixed: whether it belongs to the file of a choice, and nobody may set it.
    """

    changes: Changes
    rule: Rule | None = None
    named: Literal["short", "long", "no"] = "long"
    column: bool = False
    fixed: bool = False

    @property
    def configures(self) -> bool:
        """Return whether runs that differ in it are of different configurations."""
        return self.changes in CONFIGURATION

    @property
    def distinguishes(self) -> bool:
        """Return whether runs that differ in it are different runs, of which none may replace the other."""
        return self.configures or self.changes is Changes.EXTENT

    @property
    def labelled(self) -> bool:
        """Return whether it stands in the labels of runs that differ in it."""
        return self.configures and not self.column and not self.fixed


def key_of(key: str) -> Key:
    """Return what is known of a dotted key, by its own entry or that of a mapping which it is in.

    A key without an entry is one of the user's own YAML file: it changes the work, and of a strategy how it
    is learned from.
    """
    return find(key) or (OWN_TRAINING if key.startswith("strategy.") else OWN)


def find(key: str) -> Key | None:
    """Return the entry of a dotted key, or of the nearest mapping which it is in; `None` without one."""
    while key not in KEYS and "." in key and key.rpartition(".")[0] not in GROUPS:
        key = key.rpartition(".")[0]
    return KEYS.get(key)


def _described(group: str, *options: str) -> dict[str, Key]:
    """Return the entries of keys that describe a choice of a group."""
    return {f"{group}.{option}": Key(Changes.DESCRIPTION, fixed=True) for option in options}


def _options(group: str, changes: Changes, *options: str) -> dict[str, Key]:
    """Return the entries of options of a group that have no rule of their own."""
    return {f"{group}.{option}": Key(changes) for option in options}


OWN, OWN_TRAINING = Key(Changes.WORK), Key(Changes.TRAINING)
_TEXT = Rule(str, optional=True, filled=True)
_COUNT = Rule(int, minimum=1, optional=True)
_SEED = Rule(int, minimum=0, maximum=2**31 - 1)
_SHARE = Rule(float, minimum=0, maximum=1, optional=True)

KEYS: dict[str, Key] = {
    # Choices of groups, and their names.
    "strategy": Key(Changes.TRAINING, named="short", column=True),
    "strategy.name": Key(Changes.TRAINING, fixed=True),
    "hardware": Key(Changes.HARDWARE, named="short", column=True),
    "hardware.name": Key(Changes.HARDWARE, fixed=True),
    **dict.fromkeys(("model", "dataset", "task"), Key(Changes.WORK, named="short", column=True)),
    **dict.fromkeys(("model.name", "dataset.name", "task.name"), Key(Changes.WORK, fixed=True)),
    # Top-level keys.
    "workers": Key(Changes.TRAINING, _COUNT, named="short", column=True),
    "scaling": Key(Changes.TRAINING, Rule(str, ("strong", "weak")), column=True),
    "batch": Key(Changes.WORK, Rule(int, minimum=1), named="short", column=True),
    "batch_shares": Key(Changes.SPEED, Rule(str, ("equal", "auto"), lists=True)),
    "microbatches": Key(Changes.TRAINING, _COUNT),
    "epochs": Key(Changes.TRAINING, Rule(int, minimum=1)),
    "max_minutes": Key(Changes.EXTENT, Rule(float, minimum=0, above=True)),
    "seed": Key(Changes.TRAINING, _SEED, named="short", column=True),
    "precision": Key(Changes.WORK, Rule(str, ("fp32", "bf16"))),
    "batchnorm": Key(Changes.TRAINING, Rule(str, ("local", "sync"))),
    "optimizer.name": Key(Changes.TRAINING, Rule(str, ("sgd", "adam", "adamw", "adagrad"))),
    "optimizer.lr": Key(Changes.TRAINING, Rule(float, minimum=0, above=True)),
    "optimizer.momentum": Key(Changes.TRAINING, Rule(float, minimum=0, maximum=0.9999)),
    "optimizer.weight_decay": Key(Changes.TRAINING, Rule(float, minimum=0)),
    "optimizer.clip_norm": Key(Changes.TRAINING, Rule(float, minimum=0, above=True, optional=True)),
    "optimizer.scale_lr": Key(Changes.TRAINING, Rule(str, ("none", "linear", "sqrt"))),
    "optimizer.warmup_steps": Key(Changes.TRAINING, Rule(int, minimum=0)),
    "optimizer.schedule": Key(Changes.TRAINING, Rule(str, ("constant", "cosine", "step"))),
    "evaluate_every": Key(Changes.EXTENT, _COUNT),
    "target_accuracy": Key(Changes.EXTENT, _SHARE),
    "stop_at_target": Key(Changes.EXTENT, Rule(bool)),
    "checkpoint_every": Key(Changes.WATCH, _COUNT, named="no"),
    "checkpoint_keep": Key(Changes.WATCH, Rule(int, minimum=1), named="no"),
    "resume": Key(Changes.EXTENT, _TEXT),
    "out": Key(Changes.PLACE, _TEXT, named="no"),
    "overwrite": Key(Changes.PLACE, Rule(bool), named="no"),
    # Nobody types it: `src.audit` does.
    "audit": Key(Changes.WATCH, named="no", fixed=True),
    "profiler": Key(Changes.WATCH, Rule(bool), named="no"),
    "memory_tracker": Key(Changes.WATCH, Rule(bool), named="no"),
    "tracking.backend": Key(Changes.PLACE, Rule(str, ("sqlite", "server", "none")), named="no"),
    "tracking.study": Key(Changes.PLACE, _TEXT, named="no"),
    "hydra": Key(Changes.PLACE, named="no"),
    # Options of strategies.
    **_options("strategy", Changes.TRAINING, "sync_every", "outer", "outer_lr", "outer_momentum", "mode"),
    **_options("strategy", Changes.TRAINING, "staleness", "fetch_every", "push_every", "portion", "history"),
    **_options("strategy", Changes.TRAINING, "stash", "vertical_sync"),
    **_options("strategy", Changes.TRAINING, "compression", "compression_rank", "compression_ratio", "sync"),
    **_options("strategy", Changes.SPEED, "backend", "all_reduce", "bucket_mb", "compile", "partition"),
    "strategy.find_unused_parameters": Key(Changes.SPEED, Rule(bool, optional=True)),
    **_options("strategy", Changes.SPEED, "speeds", "memory_gib", "schedule", "recompute", "tied"),
    **_options("strategy", Changes.SPEED, "virtual_stages"),
    **_options("strategy", Changes.SPEED, "reduction", "communication", "steps_per_execution", "xla"),
    **_options("strategy", Changes.SPEED, "servers", "timeout_seconds", "deterministic", "sharding"),
    **_options("strategy", Changes.SPEED, "shard_kib", "loop", "reshard", "groups", "group_mb", "plan"),
    **_options("strategy", Changes.SPEED, "sequence_parallel"),
    **_options("strategy", Changes.SPEED, "data", "shard", "pipeline", "tensor"),
    "strategy.mpiexec": Key(Changes.SPEED, _TEXT),
    "strategy.max_restarts": Key(Changes.WATCH),
    **_described("strategy", "framework", "entry", "serve", "launcher", "exchange", "loopback"),
    **_described("strategy", "synchronous", "parity", "reference", "baseline", "capacity"),
    **_described("strategy", "supports", "allowed", "predicted"),
    # Options of models and tasks.
    **_options("model", Changes.WORK, "hidden", "layers", "prior", "options", "trunk", "width", "dropout"),
    **_options(
        "model", Changes.WORK, "stem", "blocks", "depth", "heads", "kv_heads", "activation", "tied", "patch"
    ),
    # A model of the user's own has the name of what the path leads to.
    "model.path": Key(Changes.WORK, _TEXT, named="no"),
    "model.pretrained": Key(Changes.WORK, _TEXT),
    # One of transformers has its architecture's.
    "model.architecture": Key(Changes.WORK, _TEXT, named="no"),
    "model.config": Key(Changes.WORK, _TEXT),
    **_described("model", "torch", "tensorflow", "draws", "package", "own_training", "check_sizes"),
    **_described("model", "tensor_plan", "allowed"),
    **_options("task", Changes.WORK, "score_loss", "shrink", "angle_weight", "least_score", "merge_iou"),
    "task.output": Key(Changes.WORK, Rule(str, optional=True, filled=True, numbered=True)),
    **_described("task", "torch", "tensorflow", "models", "metrics", "higher_is_better", "allowed"),
    # Options of datasets: how many samples there are is no matter of what one of them costs.
    "dataset.source": Key(Changes.WORK, Rule(str, ("original", "generated")), column=True),
    "dataset.data_dir": Key(Changes.PLACE, _TEXT, named="no"),
    "dataset.fraction": Key(Changes.WORK, Rule(float, minimum=0, maximum=1, above=True)),
    "dataset.generator_seed": Key(Changes.WORK, _SEED),
    "dataset.size": Key(Changes.WORK, Rule(int, minimum=8, optional=True)),
    "dataset.skip_damaged": Key(Changes.WORK, Rule(bool, optional=True)),
    # This holds for a dataset that doesn't say itself, by its `allowed`, what suits it.
    "dataset.augment": Key(Changes.WORK, Rule(str, ("none", "crop_flip"))),
    # Below that a window has no blocks of several samples (src/data/order.py).
    "dataset.shuffle_window": Key(Changes.WORK, Rule(int, minimum=32, optional=True)),
    "dataset.module": Key(Changes.WORK, _TEXT),
    **_options("dataset", Changes.WORK, "options", "shape", "classes"),
    "dataset.limit": Key(Changes.TRAINING, _COUNT),
    "dataset.test_limit": Key(Changes.TRAINING, _COUNT),
    **_options("dataset", Changes.TRAINING, "samples", "test_samples", "test_share"),
    **dict.fromkeys(("dataset.files", "dataset.content"), Key(Changes.WORK, fixed=True)),
    **_described("dataset", "code", "task", "reader", "in_memory", "generator", "sources", "unpack", "tree"),
    **_described("dataset", "page", "licence", "registration", "allowed"),
    # Keys of hardware.
    **_options("hardware", Changes.HARDWARE, "device", "cores_per_device", "speeds", "links"),
    "hardware.engine": Key(Changes.HARDWARE, _TEXT),
    **_options("hardware", Changes.SPEED, "start_method", "share_devices", "speed_period_ms", "warmup_steps"),
    **_options("hardware", Changes.SPEED, "options"),
    "hardware.hosts": Key(Changes.SPEED, _COUNT),
    "hardware.scheduler": Key(Changes.SPEED, Rule(str, ("slurm",), optional=True)),
    "hardware.partition": Key(Changes.SPEED, _TEXT),
    # In names these tell the cells of a sweep over them apart.
    "hardware.devices": Key(Changes.PLACE, Rule(int, minimum=0, optional=True, entries=True)),
    "hardware.sample_seconds": Key(Changes.WATCH),
    "hardware.repeat_disturbed": Key(Changes.WATCH, Rule(int, minimum=0, optional=True)),
    "hardware.grace_minutes": Key(Changes.WATCH),
    "hardware.isolate": Key(Changes.WATCH, named="no"),
    "hardware.probe": Key(Changes.WATCH, named="no"),
    "hardware.probe_seconds": Key(Changes.WATCH, named="no"),
    "hardware.lost_seconds": Key(Changes.WATCH, named="no"),
    "hardware.time_limit": Key(Changes.WATCH, Rule(float, minimum=1, optional=True), named="no"),
    "hardware.wait_minutes": Key(Changes.PLACE, named="no"),
    "hardware.jobs": Key(Changes.PLACE, named="no"),
    "hardware.address": Key(Changes.PLACE, _TEXT, named="no"),
    "hardware.token_file": Key(Changes.PLACE, _TEXT, named="no"),
    "hardware.account": Key(Changes.PLACE, _TEXT, named="no"),
    **_described("hardware", "allowed"),
}
