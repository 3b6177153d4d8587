"""The typed configuration behind `conf/`, and every check of a combination of what a user typed.

Neither Hydra nor a framework is imported here: a rank reads the resolved `config.yaml` with this module and
`rules.py` alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from src.launch import devices
from src.rules import ConfigError, leaf

CONF = Path(__file__).parent.parent / "conf"


@dataclass(frozen=True)
class Config:
    """One run's resolved configuration (`config.yaml`); the groups are their files' mappings."""

    strategy: Mapping[str, Any]
    model: Mapping[str, Any]
    dataset: Mapping[str, Any]
    hardware: Mapping[str, Any]
    workers: int
    scaling: str
    batch: int
    batch_shares: str | Sequence[int]
    microbatches: int
    epochs: int
    max_minutes: float
    seed: int
    precision: str
    batchnorm: str
    optimizer: Mapping[str, Any]
    evaluate_every: int | None
    target_accuracy: float | None
    out: str
    overwrite: bool
    tracking: Mapping[str, Any]
    checkpoint_every: int | None = None
    resume: str | None = None

    @property
    def framework(self) -> str:
        """`torch` or `tensorflow`."""
        return self.strategy["framework"]

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step of the whole job."""
        return self.batch * self.workers if self.scaling == "weak" else self.batch

    @property
    def worker_batch(self) -> int:
        """Samples per optimizer step of one worker."""
        shares = self.workers if self.strategy["supports"]["shares_batch"] else 1
        return self.global_batch // shares

    @property
    def microbatch(self) -> int:
        """Samples per forward pass of one worker."""
        return self.worker_batch // self.microbatches

    @property
    def warmup_steps(self) -> int:
        """Steps left out of every timed figure; those that are timed together are left out together."""
        together = self.strategy.get("steps_per_execution", 1)
        return math.ceil(self.hardware["warmup_steps"] / together) * together

    @property
    def evaluation_batch(self) -> int:
        """Test samples per forward pass: enough to be quick, and without more memory than a step needs."""
        return min(500, max(100, self.batch))


def load(path: Path) -> Config:
    """Reads a resolved `config.yaml`."""
    return Config(**yaml.safe_load(path.read_text()))


def resolve(raw: Mapping[str, Any], out: str) -> Config:
    """Fills in what the strategy and the machine decide, and checks the combination.

    Raises:
        ConfigError: for a combination that can't run.
    """
    supports = raw["strategy"]["supports"]
    hardware = dict(raw["hardware"])
    if hardware["device"] == "auto":
        hardware["device"] = "gpu" if "gpu" in supports["devices"] and devices.gpu_indices() else "cpu"
    filled = {
        "workers": raw["workers"] or supports["workers"]["default"],
        "microbatches": raw["microbatches"] or supports["microbatches"]["default"],
        "hardware": hardware,
        "out": out,
    }
    filled["strategy"] = {**raw["strategy"], "parity": _parity(raw["strategy"])}
    config = Config(**{**raw, **filled})
    for check in (
        _check_supported,
        _check_framework,
        _check_batch,
        _check_unequal,
        _check_lists,
        _check_needs,
        _check_files,
        _check_devices,
        _check_launcher,
        _check_tracking,
    ):
        check(config)
    return config


def _parity(strategy: Mapping[str, Any]) -> str:
    """The word for it, which may hang on an option: `{option: {choice: word}}`."""
    parity = strategy["parity"]
    if isinstance(parity, str):
        return parity
    ((option, words),) = parity.items()
    return words[strategy[option]]


def _check_supported(config: Config) -> None:
    name, supports = config.strategy["name"], config.strategy["supports"]
    for key in ("workers", "microbatches"):
        value, low, high = getattr(config, key), supports[key]["min"], supports[key]["max"]
        if value < low or (high is not None and value > high):
            span = f"exactly {low}" if low == high else f"{low} to {high}" if high else f"at least {low}"
            raise ConfigError(f"{key}={value}: strategy {name} takes {span}")
    for key, given in (("batchnorm", config.batchnorm), ("precision", config.precision)):
        if given not in supports[key]:
            raise ConfigError(f"{key}={given}: strategy {name} supports {', '.join(supports[key])}")
    if config.hardware["device"] not in supports["devices"]:
        kinds = ", ".join(supports["devices"])
        raise ConfigError(f"hardware.device={config.hardware['device']}: strategy {name} runs on {kinds}")


def _models_for(framework: str) -> list[str]:
    files = sorted((CONF / "model").glob("*.yaml"))
    return [path.stem for path in files if yaml.safe_load(path.read_text()).get(framework)]


def _check_framework(config: Config) -> None:
    builder = config.model.get(config.framework)
    if not builder:
        has = [name for name in ("torch", "tensorflow") if config.model.get(name)]
        raise ConfigError(
            f"model={config.model['name']}: exists for {', '.join(has)} and strategy "
            f"{config.strategy['name']} needs {config.framework}, for which there are "
            f"{', '.join(_models_for(config.framework))}"
        )
    for key, path in (
        ("strategy.entry", config.strategy["entry"]),
        ("model", builder),
        ("model.path", config.model.get("path", builder)),
        ("dataset.reader", config.dataset["reader"]),
    ):
        top, _, rest = path.partition(".")
        if not top or not rest:
            raise ConfigError(f"{key}={path}: is no import path; give package.module.name")
        if importlib.util.find_spec(top) is None:
            raise ConfigError(f"{key}={path}: no package {top!r} can be imported; give package.module.name")


def _check_batch(config: Config) -> None:
    shares = config.workers if config.strategy["supports"]["shares_batch"] else 1
    parts = shares * config.microbatches
    if config.global_batch % parts:
        lower = config.batch - config.batch % parts
        hint = lower or parts
        raise ConfigError(
            f"batch={config.batch}: must divide by workers x microbatches = {shares} x "
            f"{config.microbatches} = {parts}; the nearest is {hint}"
        )
    if config.dataset.get("limit") is not None and config.global_batch > config.dataset["limit"]:
        raise ConfigError(
            f"batch={config.batch}: one step takes {config.global_batch} samples and dataset.limit="
            f"{config.dataset['limit']} leaves fewer; choose batch <= {config.dataset['limit']}"
        )


def _check_unequal(config: Config) -> None:
    if config.batch_shares != "equal" or config.hardware["speeds"] is not None:
        importlib.import_module("src.launch.unequal").check(config)


def _check_lists(config: Config) -> None:
    """A list with an item a worker, or with the names at which all workers' parts but the first begin."""
    for option, allowed in (config.strategy.get("allowed") or {}).items():
        value = config.strategy[option]
        if not isinstance(allowed, Mapping) or not allowed.get("lists") or not isinstance(value, list):
            continue
        named = isinstance(value[0], str)
        wanted = config.workers - named
        if len(value) != wanted:
            what = "name where each but the first begins" if named else "an entry each"
            raise ConfigError(
                f"strategy.{option}={value}: has {len(value)} entries, and workers={config.workers} need "
                f"{wanted}: {what}"
            )


def _check_needs(config: Config) -> None:
    """What some choice of an option asks of another key: a bound (a number, or another key), or a value."""
    for need in config.strategy["supports"].get("needs", ()):
        if any(config.strategy[option] != value for option, value in need.get("when", {}).items()):
            continue
        key = need["key"]
        value = leaf(vars(config), key)
        if "is" in need:
            fits, wanted = value == need["is"], f"{key}={need['is']}"
        elif "at_most" in need:
            fits, wanted = value <= need["at_most"], f"{key}={need['at_most']} at most"
        else:
            least = getattr(config, need["at_least"])
            fits, wanted = value >= least, f"at least as many as {need['at_least']}={least}"
        if not fits:
            when = [f"strategy.{option}={choice}" for option, choice in need.get("when", {}).items()]
            who = ", ".join(when) or f"strategy={config.strategy['name']}"
            raise ConfigError(f"{key}={value}: {who} needs {wanted}")


def _check_files(config: Config) -> None:
    """Checkpoints are a matter of the frameworks that have them, and files must be there."""
    wanted = {"checkpoint_every": config.checkpoint_every, "resume": config.resume}
    for key, value in wanted.items():
        if value is not None and not config.strategy["supports"].get("checkpoints", False):
            raise ConfigError(f"{key}={value}: strategy {config.strategy['name']} writes no checkpoints")
    if config.model.get("pretrained") is not None and config.framework != "torch":
        raise ConfigError(
            f"model.pretrained={config.model['pretrained']}: is a torch state dict, and strategy "
            f"{config.strategy['name']} trains under {config.framework}"
        )
    for key, path in (("resume", config.resume), ("model.pretrained", config.model.get("pretrained"))):
        if path is not None and not Path(path).is_file():
            raise ConfigError(f"{key}={path}: no such file")


def _check_devices(config: Config) -> None:
    kind, per_device = config.hardware["device"], config.hardware["cores_per_device"]
    found = len(devices.find(kind, per_device))
    if not found and kind == "gpu":
        raise ConfigError("hardware.device=gpu: no NVIDIA GPU is found here; choose hardware.device=cpu")
    if not found:
        raise ConfigError(
            f"hardware.cores_per_device={per_device}: this process may use "
            f"{len(devices.usable_cores())} core(s); choose at most that"
        )
    if config.workers > found and not config.hardware["share_devices"]:
        what = f"{kind} device(s)" + (f" of {per_device} core(s)" if kind == "cpu" else "")
        raise ConfigError(
            f"workers={config.workers}: there are {found} {what} here; choose workers={found}, or "
            "hardware.share_devices=true to check correctness only"
        )


def _check_launcher(config: Config) -> None:
    """What a launcher itself needs, as a program."""
    launcher = importlib.import_module(f"src.launch.{config.strategy['launcher']}")
    if hasattr(launcher, "check"):
        launcher.check(config)


def _check_tracking(config: Config) -> None:
    if config.tracking["backend"] == "server" and not os.environ.get("MLFLOW_TRACKING_URI"):
        raise ConfigError(
            "tracking.backend=server: needs MLFLOW_TRACKING_URI=http://host:port in the environment; "
            "tracking.backend=sqlite needs nothing"
        )
