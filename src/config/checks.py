"""Check that the keys of a configuration fit together, and fill in values that users may leave open."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from src.config import datasets, huggingface
from src.config.batch_shares import check_batch_shares
from src.config.choices import check_framework, check_model_and_task, check_parity, check_target
from src.config.devices import check_cluster, check_compiler, check_devices, check_speeds
from src.config.emulated_links import check_links
from src.config.mistakes import CannotRunHere, ConfigError
from src.config.own_training import check_own_training
from src.config.run_config import MESH, Config, Degrees, Hardware, Supports
from src.config.schedules import SCHEDULES, refusal
from src.config.schema import SYNCHRONOUS, leaf
from src.config.slurm import check_slurm, hosts_of
from src.config.tracking_address import URI_VARIABLE, check_address
from src.machine import devices

# What lists of names may be of, however many.
NAMED = {
    "modules": "modules, as [layer1,layer2]",
    "splits": "layers and how each is split, as [layers.*.w1:colwise,layers.*.w2:rowwise]",
}
# Keys of `predicted` that hold options by name, and no choices by them.
OPTIONS = ("options", "only")
# The first step, those that are profiled, and one in which the trace is written.
LEAST_FOR_PROFILER = 5
# The optimizer's state is made in the first step, and DistributedDataParallel's buckets in the second.
LEAST_FOR_MEMORY_TRACKER = 3


def resolve(raw: Mapping[str, Any], out: str) -> Config:
    """Check one composed cell, and return its configuration without open values.

    Values that the user left open (workers, micro-batches, `hardware.device=auto`) are filled in by the
    strategy and the machine. What the strategy's launcher needs is checked elsewhere, by `Launcher.check`.
    Raises `ConfigError` for a combination that can't run.

    Args:
        raw: the composed keys and values of `conf/config.yaml` and the chosen groups.
        out: the run's directory.
    """
    check_parity(raw["strategy"])
    supports = Supports.of(raw["strategy"])
    hardware = Hardware(**raw["hardware"])
    if hardware.device == "auto":
        # Emulated hosts have CPU devices alone.
        gpus = "gpu" in supports.devices and hardware.links is None and devices.visible_gpus()
        hardware = replace(hardware, device="gpu" if gpus else "cpu")
    if hardware.repeat_disturbed is None:
        again = int(_repetitions(raw["tracking"]["study"]) > 1)
        hardware = replace(hardware, repeat_disturbed=again)
    strategy, workers = _filled_degrees(raw, supports)
    filled = {
        "workers": workers,
        "microbatches": raw["microbatches"] or _default_microbatches(strategy, supports),
        "hardware": replace(hardware, hosts=hosts_of(hardware, workers)),
        "out": out,
    }
    filled["dataset"] = datasets.filled(raw["dataset"])
    filled["strategy"] = {**strategy, **decided_by_options(strategy), **_virtual_stages(strategy)}
    config = Config(**{**raw, **filled})
    for check in (
        _check_supported,
        _check_degrees,
        _check_schedule,
        check_links,
        check_cluster,
        check_slurm,
        check_framework,
        huggingface.check,
        check_model_and_task,
        check_own_training,
        check_target,
        _check_batch,
        check_batch_shares,
        check_speeds,
        _check_lists,
        _check_needs,
        _check_files,
        check_devices,
        _check_tracking,
        _check_profiler,
        _check_memory_tracker,
        check_compiler,
    ):
        try:
            check(config)
        except CannotRunHere as error:
            error.config = config
            raise
    return config


def _filled_degrees(raw: Mapping[str, Any], supports: Supports) -> tuple[Mapping[str, Any], int]:
    """Return the strategy and the number of workers, each filled in by the other where degrees say both."""
    strategy, workers = raw["strategy"], raw["workers"]
    if supports.axis != MESH:
        return strategy, workers or supports.workers.default
    others = math.prod(strategy.get(each.name, 1) for each in fields(Degrees) if each.name != "data")
    if strategy["data"] is not None:
        return strategy, workers or strategy["data"] * others
    workers = workers or max(supports.workers.default, others)
    return {**strategy, "data": max(1, workers // others)}, workers


def _default_microbatches(strategy: Mapping[str, Any], supports: Supports) -> int:
    """Return how many micro-batches a batch has that the user left open."""
    if supports.axis == MESH and strategy.get("pipeline", 1) == 1:
        # The strategy's default fills stages. Without any, a model that moves a buffer would only move it
        # more often than on one device.
        return supports.microbatches.min
    return supports.microbatches.default


def _repetitions(study: str | None) -> int:
    """Return how often the cells of a study are measured, by the `params.yaml` here; else 1."""
    try:
        known = yaml.safe_load(Path("params.yaml").read_text())["study"]
        return int(known["repeat"]) if known["name"] == study else 1
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError):
        return 1


def decided_by_options(strategy: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a strategy's keys that options decide, under the chosen ones."""
    synchronous = _under_options(strategy, strategy["synchronous"])
    parity = _under_options(strategy, strategy.get("parity"))
    if parity is None and not synchronous:
        raise ConfigError(f"conf/strategy/{strategy['name']}.yaml: `parity` lacks words for these options")
    parity = parity or SYNCHRONOUS
    found: dict[str, Any] = {"synchronous": synchronous, "parity": parity, "exchange": None}
    for key in ("exchange", "predicted"):
        if described := strategy.get(key):
            found[key] = {
                each: value if each in OPTIONS else _under_options(strategy, value)
                for each, value in described.items()
            }
    return found


def _under_options(strategy: Mapping[str, Any], value: Any) -> Any:
    """Return `value`, or the choice for an option's value where `value` is `{option: {value: choice}}`.

    Of several options the first one counts that has a choice for its value; without one it is `None`.
    """
    if not isinstance(value, Mapping):
        return value
    chosen = [choices[strategy[option]] for option, choices in value.items() if strategy[option] in choices]
    return next(iter(chosen), None)


def _virtual_stages(strategy: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of stages a worker that a schedule has by default, unless it is given."""
    if strategy.get("virtual_stages", 1) is not None or strategy["schedule"] not in SCHEDULES:
        return {}
    return {"virtual_stages": SCHEDULES[strategy["schedule"]].virtual[2]}


def _check_degrees(config: Config) -> None:
    """Raise `ConfigError` where degrees don't multiply to the workers, or can't go together yet."""
    degrees = config.degrees
    degrees.check(config.workers)
    if degrees.tensor > 1 and degrees.shard > 1:
        raise ConfigError(
            f"strategy.tensor={degrees.tensor}: goes with strategy.data and strategy.pipeline; choose "
            "strategy.shard=1"
        )
    if config.strategy.get("sequence_parallel") and degrees.pipeline > 1:
        raise ConfigError(
            f"strategy.sequence_parallel=true: goes without stages, and strategy.pipeline={degrees.pipeline};"
            " choose strategy.sequence_parallel=false, or strategy.pipeline=1"
        )
    if config.strategy.get("tied") == "reduce" and degrees.pipeline > 1 and degrees.shard > 1:
        # Stages would sum gradients of weights that shards have taken the place of.
        raise ConfigError(
            f"strategy.tied=reduce: goes without shards, and strategy.shard={degrees.shard}; "
            "choose strategy.tied=together, or strategy.shard=1"
        )


def _check_schedule(config: Config) -> None:
    """Raise `ConfigError` where a pipeline's schedule can't go with the other options."""
    if not config.cuts or (name := config.strategy.get("schedule")) is None:
        return
    degrees = config.degrees
    if reason := refusal(name, degrees.pipeline, config.virtual_stages, config.microbatches):
        raise ConfigError(reason)
    others = [
        f"strategy.{axis}={value}" for axis in ("shard", "tensor") if (value := getattr(degrees, axis)) > 1
    ]
    if config.strategy.get("compile"):
        others.append("strategy.compile=true")
    if SCHEDULES[name].several and others:
        raise ConfigError(
            f"strategy.schedule={name}: goes without {others[0]}; choose strategy.schedule=gpipe or 1f1b"
        )
    if config.strategy["recompute"] == "selective":
        if config.strategy["memory_gib"] is None:
            raise ConfigError(
                "strategy.recompute=selective: needs strategy.memory_gib, for which it computes again as "
                "little as it can; strategy.recompute=full computes all of it again"
            )
        if others:
            raise ConfigError(
                f"strategy.recompute=selective: goes without {others[0]}; choose strategy.recompute=full"
            )
    if SCHEDULES[name].splits and (recompute := config.strategy["recompute"]) != "none":
        raise ConfigError(
            f"strategy.recompute={recompute}: under strategy.schedule={name} backward passes for inputs and "
            "for weights are apart, and each would compute again; choose strategy.recompute=none"
        )


def _check_supported(config: Config) -> None:
    """Raise `ConfigError` for a value that the strategy's `supports` leaves out."""
    name, supports = config.strategy["name"], config.supports
    for key, bounds in (("workers", supports.workers), ("microbatches", supports.microbatches)):
        value, low, high = getattr(config, key), bounds.min, bounds.max
        if value < low or (high is not None and value > high):
            span = f"exactly {low}" if low == high else f"{low} to {high}" if high else f"at least {low}"
            raise ConfigError(f"{key}={value}: strategy {name} takes {span}")
    for key, supported in (("batchnorm", supports.batchnorm), ("precision", supports.precision)):
        if (chosen := getattr(config, key)) not in supported:
            raise ConfigError(f"{key}={chosen}: strategy {name} supports {', '.join(supported)}")
    if config.hardware.device not in supports.devices:
        kinds = ", ".join(supports.devices)
        raise ConfigError(f"hardware.device={config.hardware.device}: strategy {name} runs on {kinds}")


def _check_batch(config: Config) -> None:
    """Raise `ConfigError` unless a batch divides evenly, and is no larger than the limited dataset."""
    degree = config.data_parallel_degree
    parts = degree * config.microbatches
    if config.global_batch % parts:
        lower = config.batch - config.batch % parts
        hint = lower or parts
        sharing = "data x shard" if config.supports.axis == MESH else "workers"
        raise ConfigError(
            f"batch={config.batch}: must divide by {sharing} x microbatches = {degree} x "
            f"{config.microbatches} = {parts}; the nearest is {hint}"
        )
    if config.dataset.get("limit") is not None and config.global_batch > config.dataset["limit"]:
        raise ConfigError(
            f"batch={config.batch}: one step takes {config.global_batch} samples and dataset.limit="
            f"{config.dataset['limit']} leaves fewer; choose batch <= {config.dataset['limit']}"
        )


def _check_lists(config: Config) -> None:
    """Raise `ConfigError` where a list among the strategy's options has the wrong length or entries.

    A list of numbers must have one for each worker, or each of its stages (`lists: stages`). A list of names
    says where each part begins, for all but the first. Where `allowed` says `lists: modules`, it names
    modules, however many; `lists: splits`, it names modules and how each is split.
    """
    for option, allowed in (config.strategy.get("allowed") or {}).items():
        value = config.strategy[option]
        if not isinstance(allowed, Mapping) or not allowed.get("lists") or not isinstance(value, list):
            continue
        has_names = isinstance(value[0], str)
        if (example := NAMED.get(allowed["lists"])) is not None:
            if not has_names:
                raise ConfigError(f"strategy.{option}={value}: must name {example}")
            continue
        meshed = config.supports.axis == MESH
        workers = config.degrees.pipeline if meshed else config.workers
        each = config.virtual_stages if allowed["lists"] == "stages" else 1
        length = workers * each - has_names
        if len(value) != length:
            meaning = "name where each but the first begins" if has_names else "an entry each"
            needing = f"strategy.pipeline={workers}" if meshed else f"workers={workers}"
            needing += f" of strategy.virtual_stages={each}" if each > 1 else ""
            raise ConfigError(
                f"strategy.{option}={value}: has {len(value)} entries, and {needing} need {length}: {meaning}"
            )


def _check_needs(config: Config) -> None:
    """Raise `ConfigError` where a strategy, or an option of it, needs another value of some other key.

    The strategy's `supports.needs` lists such needs: a value (`is`), a greatest number (`at_most`), or a key
    whose value is the least (`at_least`). A need with `when` holds only under the option values listed there.
    The key `machine` is the processor's kind, as `uname -m` has it.
    """
    for need in config.supports.needs:
        if any(config.strategy[option] != value for option, value in need.get("when", {}).items()):
            continue
        key = need["key"]
        value = platform.machine() if key == "machine" else leaf(vars(config), key)
        if "is" in need:
            fits, requirement = value == need["is"], f"{key}={_typed(need['is'])}"
        elif "at_most" in need:
            fits, requirement = value <= need["at_most"], f"{key}={need['at_most']} at most"
        else:
            least = leaf(vars(config), need["at_least"])
            fits, requirement = value >= least, f"at least as many as {need['at_least']}={least}"
        if not fits:
            when = [f"strategy.{option}={choice}" for option, choice in need.get("when", {}).items()]
            cause = ", ".join(when) or f"strategy={config.strategy['name']}"
            raise ConfigError(f"{key}={_typed(value)}: {cause} needs {requirement}")


def _typed(value: Any) -> Any:
    """Return a value as it is typed."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else value


def _check_files(config: Config) -> None:
    """Refuse checkpoints that the strategy can't write, or a file that isn't there or doesn't fit."""
    checkpoint_keys = {"checkpoint_every": config.checkpoint_every, "resume": config.resume}
    for key, value in checkpoint_keys.items():
        if value is not None and not config.supports.checkpoints:
            raise ConfigError(f"{key}={value}: strategy {config.strategy['name']} writes no checkpoints")
    if config.checkpoint_keep > 1 and config.checkpoint_every is None:
        raise ConfigError(
            f"checkpoint_keep={config.checkpoint_keep}: no checkpoints are written without checkpoint_every; "
            "set it too, in steps, or leave this away"
        )
    if config.model.get("pretrained") is not None and config.framework != "torch":
        raise ConfigError(
            f"model.pretrained={config.model['pretrained']}: is a torch state dict, and strategy "
            f"{config.strategy['name']} trains under {config.framework}"
        )
    weights = None if "package" in config.model else config.model.get("pretrained")
    for key, path in (("resume", config.resume), ("model.pretrained", weights)):
        if path is not None:
            _check_file(key, path)


def _check_file(key: str, path: str) -> None:
    """Raise `ConfigError` unless `path` is a file that can be read."""
    if os.path.isdir(path):
        hint = files[0] if (files := sorted(Path(path).glob("checkpoint.*"))) else "a file in it"
        raise ConfigError(f"{key}={path}: is a directory; name {hint}")
    if not os.path.exists(path):
        raise ConfigError(f"{key}={path}: no such file")
    if not os.path.isfile(path):
        raise ConfigError(f"{key}={path}: is no regular file")
    if not os.access(path, os.R_OK):
        raise ConfigError(f"{key}={path}: can't be read: permission denied")


def _check_profiler(config: Config) -> None:
    """Raise `ConfigError` where steps are to be profiled that can't be, or that would be timed."""
    if not config.profiler:
        return
    if not config.supports.profiler:
        raise ConfigError(
            f"profiler=true: the steps of strategy {config.strategy['name']} can't be profiled; leave it away"
        )
    if config.hardware.warmup_steps < LEAST_FOR_PROFILER:
        raise ConfigError(
            f"hardware.warmup_steps={config.hardware.warmup_steps}: profiler=true needs "
            f"{LEAST_FOR_PROFILER} at least, of which it traces three"
        )


def _check_memory_tracker(config: Config) -> None:
    """Raise `ConfigError` where tensors are to be followed that can't be, or in a step that is timed."""
    if not config.memory_tracker:
        return
    if not config.supports.memory_tracker:
        raise ConfigError(
            f"memory_tracker=true: tensors of strategy {config.strategy['name']} can't be followed; "
            "leave it away"
        )
    if config.strategy.get("compile"):
        raise ConfigError(
            "memory_tracker=true: what compiled code makes can't be followed; strategy.compile=false can be"
        )
    if config.hardware.warmup_steps < LEAST_FOR_MEMORY_TRACKER:
        raise ConfigError(
            f"hardware.warmup_steps={config.hardware.warmup_steps}: memory_tracker=true needs "
            f"{LEAST_FOR_MEMORY_TRACKER} at least, the last of which it follows"
        )


def _check_tracking(config: Config) -> None:
    """Raise `ConfigError` for a tracking server without an address, or an address that can't be one."""
    uri = os.environ.get(URI_VARIABLE)
    if config.tracking["backend"] != "none" and uri is not None:
        check_address(uri)
    if config.tracking["backend"] == "server" and uri is None:
        raise ConfigError(
            "tracking.backend=server: needs MLFLOW_TRACKING_URI=http://host:port in the environment; "
            "tracking.backend=sqlite needs nothing"
        )
