"""Read and write a cost profile, `profile.json`: what a model's steps, operations and exchanges cost.

A profile has points. A point of `steps` is a rehearsal of one strategy with so many workers and
micro-batches, which predicts steps of other batches together with a second one; a point of `operations` has
the passes of each operation for micro-batches of one size, from which the stages of any cut are made up.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from src.config import Config, ConfigError
from src.config.keys import Changes, key_of
from src.machine import devices
from src.machine.devices import processor
from src.measure.environment import gpu_names
from src.measure.software import software_of
from src.predict.own import stand_in
from src.run.tables import write_text

STEPS, OPERATIONS = "steps", "operations"
# The modules whose `train` profiles in the place of a training, by framework and kind.
ENTRIES = {
    ("torch", STEPS): "src.runtime.torch.rehearsal",
    ("torch", OPERATIONS): "src.runtime.torch.operations_profile",
    ("tensorflow", STEPS): "src.runtime.tensorflow.rehearsal",
}
VERSION = 1


class NotProfiled(ConfigError):
    """A profile that lacks what a run's steps are predicted from, or has it of other code; it can be made."""


@dataclass(frozen=True)
class Point:
    """A measurement of a profile.

    Attributes:
        kind: `steps` or `operations`.
        model: what the user calls the model.
        identity: what a run must have in common with it, by name.
        code: the digest of the code that computed it.
        microbatch: samples of a micro-batch of a worker.
        beside: how many processes measured side by side.
        ranks: what each of these left.
    """

    kind: str
    model: str
    identity: Mapping[str, Any]
    code: str
    microbatch: int
    beside: int
    ranks: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Profile:
    """A cost profile.

    Attributes:
        points: its measurements of models.
        exchanges: measurements of exchanges: how many `ranks`, on what `device`, over which `links` (`None`
            within one host), and the `rows` (`src/measure/exchange_benchmark.py`).
        machine: what tells the machine from others; empty of one without points.
        path: the file that it was read from.
    """

    points: tuple[Point, ...] = ()
    exchanges: tuple[Mapping[str, Any], ...] = ()
    machine: str = ""
    path: Path = field(default=Path("profile.json"), compare=False)

    def write(self, path: Path) -> None:
        """Write the profile to a file."""
        content = {
            "version": VERSION,
            "machine": self.machine,
            "points": [dataclasses.asdict(point) for point in self.points],
            "exchanges": [dict(each) for each in self.exchanges],
        }
        write_text(path, json.dumps(content))

    def with_point(self, point: Point) -> Profile:
        """Return the profile with a further point, which joins what the same code has left of it before."""
        alike = [each for each in self.points if _place(each) == _place(point)]
        ranks = [rank for each in [*alike, point] if each.code == point.code for rank in each.ranks]
        others = tuple(each for each in self.points if each not in alike)
        return dataclasses.replace(self, points=(*others, dataclasses.replace(point, ranks=ranks)))

    def with_exchanges(self, exchanges: Mapping[str, Any]) -> Profile:
        """Return the profile with a further measurement of exchanges."""
        return dataclasses.replace(self, exchanges=(*self.exchanges, exchanges))

    def of(self, config: Config) -> list[Point]:
        """Return the points from which a run's steps are predicted, those of fewer samples first.

        There is one of each size of micro-batch, all measured beside as many others as compute at once, or as
        this machine has devices.

        Raises:
            ConfigError: where there are none, with what there is instead.
        """
        kind, rehearsed = kind_of(config), stand_in.of(config)
        wanted = identity(rehearsed)
        named = [point for point in self.points if point.kind == kind]
        alike = [point for point in named if point.identity == wanted]
        if not alike:
            raise NotProfiled(f"{self.path}: {_missing(config, wanted, named, self.points)}")
        code = code_of(rehearsed)
        known = [point for point in alike if point.code == code]
        if not known:
            raise NotProfiled(
                f"{self.path}: its model={config.model['name']} was computed by other code than there is "
                "now; make it again"
            )
        wanted_beside = stand_in.beside(config)
        # What computes beside others takes longer: sizes that were measured otherwise don't go together.
        found = min({each.beside for each in known}, key=lambda count: (abs(count - wanted_beside), -count))
        # One profile of operations serves any number of stages.
        if kind == STEPS and found < min(wanted_beside, _devices(config)):
            raise NotProfiled(
                f"{self.path}: model={config.model['name']} was profiled on {found} device(s) at once, not "
                f"on {wanted_beside}; profile strategy={config.strategy['name']} with so many workers, too"
            )
        best = {each.microbatch: each for each in known if each.beside == found}
        return [best[size] for size in sorted(best)]


def read(path: Path) -> Profile:
    """Read a profile; raise `ConfigError` for a file that is none."""
    path = path / "profile.json" if path.is_dir() else path
    try:
        content = json.loads(path.read_text())
        if content["version"] != VERSION:
            raise ConfigError(f"{path}: is a profile of version {content['version']}; make it again")
        points = tuple(Point(**each) for each in content["points"])
        return Profile(points, tuple(content["exchanges"]), content["machine"], path)
    except OSError as error:
        raise ConfigError(
            f"{path}: can't be read: {error.strerror}; `python -m src.profile model=...` makes one"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: is no profile, as `python -m src.profile model=...` makes them"
        ) from error


def kind_of(config: Config) -> str:
    """Return which kind of point predicts a run.

    Raises:
        ConfigError: where none does.
    """
    name, rehearsed = config.strategy["name"], stand_in.of(config)
    kind = OPERATIONS if rehearsed.cuts else STEPS
    if (config.framework, kind) not in ENTRIES or not (rehearsed.cuts or rehearsed.supports.rehearsal):
        raise ConfigError(f"strategy={name}: its steps can't be predicted yet")
    for key, given, plain in (
        ("model.own_training", config.model.get("own_training"), None),
        ("hardware.engine", config.hardware.engine, None),
        ("resume", config.resume, None),
        ("audit", config.audit, None),
    ):
        if given != plain and not (plain is None and not given):
            raise ConfigError(f"{key}={given}: steps of such a run can't be predicted yet")
    one_process = config.strategy["launcher"].endswith(".SingleProcess")
    if config.hardware.speeds and one_process and config.workers > 1:
        raise ConfigError(
            f"hardware.speeds={config.hardware.speeds}: strategy {name} has all its devices in one process"
        )
    if config.hardware.device == "gpu" and config.degrees.shard > 1:
        raise ConfigError(f"strategy={name}: what shards overlap on GPUs can't be predicted yet")
    if rehearsed.cuts:
        _check_cut(config)
    return kind


def _check_cut(config: Config) -> None:
    """Raise `ConfigError` where the steps of a run whose model is cut can't be predicted."""
    name = config.strategy["name"]
    if config.degrees.pipeline == 1:
        raise ConfigError("workers=1: a single stage is strategy=single, whose steps can be predicted")
    if config.degrees.tensor > 1:
        raise ConfigError(f"strategy={name}: stages of parts can't be predicted yet")
    if config.degrees.pipeline < config.workers and config.hardware.speeds:
        raise ConfigError(
            f"hardware.speeds={config.hardware.speeds}: copies of stages on such devices can't be predicted "
            "yet"
        )
    if config.strategy.get("compile"):
        raise ConfigError("strategy.compile=true: steps of compiled stages can't be predicted yet")
    if config.optimizer["clip_norm"] is not None:
        raise ConfigError(
            f"optimizer.clip_norm={config.optimizer['clip_norm']}: can't be predicted of stages yet"
        )


def identity(config: Config) -> dict[str, Any]:
    """Return what a run has in common with the points that predict it, by name."""
    common = {
        "model": _plain(config.model),
        "dataset": _work("dataset", config.dataset),
        "task": _work("task", config.task),
        "precision": config.precision,
        "device": config.hardware.device,
        "cores_per_device": config.hardware.cores_per_device,
        "optimizer": config.optimizer["name"],
        "momentum": bool(config.optimizer["momentum"]),
        "clipped": config.optimizer["clip_norm"] is not None,
    }
    if config.cuts:
        return {**common, "tied": config.strategy.get("tied", "together")}
    return {
        **common,
        "batchnorm": config.batchnorm,
        "across_hosts": config.across_hosts,
        "strategy": options_of(config),
        "workers": config.workers,
        "microbatches": config.microbatches,
    }


def options_of(config: Config) -> dict[str, Any]:
    """Return a strategy's name and the options that a user may set."""
    options = {key: value for key, value in config.strategy.items() if not key_of(f"strategy.{key}").fixed}
    return {"name": config.strategy["name"], **_plain(options)}


def code_of(config: Config) -> str:
    """Return the digest of the code that computes a run's steps."""
    strategy = dict(config.strategy)
    if config.cuts:
        strategy["entry"] = f"{ENTRIES[config.framework, OPERATIONS]}.train"
    # Where ranks are, and who watches them, changes nothing of what they compute.
    hardware = dataclasses.replace(config.hardware, links=None, probe=False)
    plain = dataclasses.replace(
        config, strategy=strategy, hardware=hardware, profiler=False, memory_tracker=False, out=""
    )
    return _digest(json.dumps(dataclasses.asdict(plain), default=str))


@cache
def _digest(text: str) -> str:
    config = Config(**json.loads(text))
    return hashlib.sha256(json.dumps(software_of(config), sort_keys=True).encode()).hexdigest()[:16]


def _devices(config: Config) -> int:
    """Return how many devices of a run's kind this machine has."""
    hardware = config.hardware
    return len(devices.find(hardware.device, hardware.cores_per_device, hardware.devices))


def machine() -> str:
    """Return what tells this machine from others: its processor and its GPUs."""
    return _named(processor(), gpu_names())


def machine_of(environment: Mapping[str, Any]) -> str:
    """Return what tells the machine of a run's environment from others."""
    return _named((environment.get("processors") or {}).get("model"), environment.get("gpus") or ())


def _named(model: Any, gpus: Sequence[str]) -> str:
    return ", ".join(map(str, (model, *gpus)))


def _place(point: Point) -> tuple[Any, ...]:
    """Return what tells a point from others."""
    return point.kind, point.identity, point.microbatch, point.beside


def _work(group: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a dataset or task that change what is computed of a sample."""
    return _plain(
        {key: value for key, value in options.items() if key_of(f"{group}.{key}").changes is Changes.WORK}
    )


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as JSON has them."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(options), default=str))
    return plain


def _missing(
    config: Config, wanted: Mapping[str, Any], named: Sequence[Point], every: Sequence[Point]
) -> str:
    """Say what a profile has instead of a run's points."""
    model = config.model["name"]
    if model not in {point.model for point in every}:
        there = ", ".join(sorted({point.model for point in every})) or "nothing"
        return f"has no model={model}, but {there}"
    if config.strategy.get("predicted") and wanted.get("strategy", {}).get("name") != config.strategy["name"]:
        words = f"strategy={config.strategy['name']}, workers={config.workers}, batch={config.batch}"
        return (
            f"model={model} wasn't profiled for {words}, microbatches={config.microbatches}; profile that, "
            "too"
        )
    nearest = max(
        named,
        key=lambda point: sum(point.identity.get(key) == value for key, value in wanted.items()),
        default=None,
    )
    if nearest is None:
        return f"has nothing of model={model} for strategy={config.strategy['name']}; profile that, too"
    known, own = _by_key(nearest.identity), _by_key(wanted)
    differ = [key for key, value in own.items() if known.get(key) != value]
    # Options of another strategy are others anyway.
    if "strategy" in differ:
        differ = [key for key in differ if not key.startswith("strategy.")]
    shown = ", ".join(f"{key}={_short(known.get(key))}" for key in differ)
    asked = ", ".join(f"{key}={_short(own[key])}" for key in differ)
    return f"model={model} was profiled with {shown}, not with {asked}; profile that, too"


def _by_key(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return an identity by the keys that a user types, as `strategy.bucket_mb`."""
    found: dict[str, Any] = {}
    for key, value in identity.items():
        if isinstance(value, Mapping):
            inner = {f"{key}.{name}": each for name, each in value.items() if name != "name"}
            found |= {key: value["name"], **inner} if "name" in value else inner
        else:
            found[key] = value
    return found


def _short(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
