"""Define the typed configuration of one run and of its parts, and read it from the run's `config.yaml`.

This module imports neither Hydra nor a framework, so that a rank can read its configuration without Hydra.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import yaml

from src.config.mistakes import ConfigError

CONF = Path(__file__).parents[2] / "conf"
# The task of a dataset that names none.
DEFAULT_TASK = "classification"
# The axis of a strategy whose options say how many workers stand along each.
MESH = "mesh"


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """The number of parts along each axis; a worker has one part on each, so that the product is `workers`.

    Ranks are counted along `tensor` first, then `shard`, `data` and `pipeline`.

    Attributes:
        data: copies of the model, each of which sees its own part of every global batch.
        pipeline: stages of consecutive operations of the model, through which all samples pass.
        tensor: parts of each operation's tensors; their workers see the same samples.
        shard: shards of a copy's parameters and optimizer state, which its workers gather as they need
            them; each worker sees its own part of the batch.
    """

    data: int = 1
    pipeline: int = 1
    tensor: int = 1
    shard: int = 1

    @property
    def batch(self) -> int:
        """Return how many workers divide each global batch among them."""
        return self.data * self.shard

    def batch_part(self, rank: int) -> int:
        """Return which part of each global batch a rank sees, from 0."""
        return rank // self.tensor % self.batch

    def stage(self, rank: int) -> int:
        """Return which stage of the model a rank holds, from 0."""
        return rank // (self.tensor * self.batch)

    @property
    def viewers(self) -> range:
        """Return the ranks of which each sees another part of a global batch, and that together see all."""
        return range(0, self.tensor * self.batch, self.tensor)

    def check(self, workers: int) -> None:
        """Raise `ConfigError` unless the degrees are those of so many workers."""
        factors = vars(self)
        product = math.prod(factors.values())
        if product != workers:
            raise ConfigError(
                f"workers={workers}: must be {' x '.join(factors)} = "
                f"{' x '.join(map(str, factors.values()))} = {product}"
            )


@dataclass(frozen=True, kw_only=True)
class Hardware(Mapping[str, Any]):
    """The keys of a file of conf/hardware/, which conf/config.yaml explains, with its defaults.

    A run from before there was a key has its default. Code of users' own may read it as a mapping, as it may
    the other groups.
    """

    device: str = "auto"
    cores_per_device: int = 1
    start_method: str = "auto"
    isolate: str = "auto"
    devices: Sequence[int] | None = None
    wait_minutes: float = 60
    share_devices: bool = False
    speeds: Sequence[float] | None = None
    speed_period_ms: float = 10
    warmup_steps: int = 5
    sample_seconds: float = 0.5
    repeat_disturbed: int | None = None
    grace_minutes: float = 10
    probe: bool = False
    probe_seconds: float = 5
    links: Mapping[str, Any] | None = None
    engine: str | None = None
    address: str | None = None
    token_file: str | None = None
    hosts: int | None = None
    lost_seconds: float = 15
    scheduler: str | None = None
    partition: str | None = None
    account: str | None = None
    time_limit: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    jobs: int = 1
    allowed: Mapping[str, Any] = field(default_factory=dict)
    name: str

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key."""
        return vars(self)[key]

    def __iter__(self) -> Iterator[str]:
        """Return the keys, in the order in which `config.yaml` has them."""
        return iter(vars(self))

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(vars(self))


@dataclass(frozen=True)
class Bounds:
    """The least and the greatest number that a strategy takes; `max` is `None` where any is fine."""

    default: int
    min: int
    max: int | None


@dataclass(frozen=True)
class Supports:
    """The keys of a strategy's `supports`, which docs/extending.md explains.

    `batch_shares` and `hosts` may depend on options: on the value of each, or on one of several.
    """

    devices: Sequence[str]
    workers: Bounds
    microbatches: Bounds
    shares_batch: bool
    batchnorm: Sequence[str]
    precision: Sequence[str]
    batch_shares: bool | Mapping[str, Any] = False
    hosts: bool | Mapping[str, Sequence[Any]] = False
    profiler: bool = False
    memory_tracker: bool = False
    checkpoints: bool = False
    training_step: bool = False
    rehearsal: bool = False
    axis: str | None = None
    needs: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, strategy: Mapping[str, Any]) -> Supports:
        """Read what a strategy's mapping says; further keys of a user's own are left out."""
        known = {each.name for each in fields(cls)}
        described = {key: value for key, value in strategy["supports"].items() if key in known}
        for key in ("workers", "microbatches"):
            bounds = described[key]
            described[key] = Bounds(bounds["default"], bounds["min"], bounds["max"])
        return cls(**described)


@dataclass(frozen=True)
class Config:
    """The resolved configuration of one run, as its `config.yaml` holds it.

    Each of the groups `strategy`, `model`, `dataset` and `task` is the mapping of the chosen file in `conf/`;
    `hardware` may be given as that, too.

    `audit` is `None` but in a run of `src.audit`, which no user types: its `precision` (`fp64` or `own`), the
    number of its `steps`, the `changes` by which a cause is tested, of how many parts with the same samples a
    batch is made (`alike`), and the import path of what changes a process so (`enter`).
    """

    strategy: Mapping[str, Any]
    model: Mapping[str, Any]
    dataset: Mapping[str, Any]
    hardware: Hardware
    task: Mapping[str, Any]
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
    checkpoint_keep: int = 1
    resume: str | None = None
    stop_at_target: bool = False
    profiler: bool = False
    memory_tracker: bool = False
    audit: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Make the hardware of its mapping."""
        if not isinstance(self.hardware, Hardware):
            object.__setattr__(self, "hardware", Hardware(**self.hardware))

    @property
    def framework(self) -> str:
        """Return the strategy's framework, `torch` or `tensorflow`."""
        return self.strategy["framework"]

    @property
    def changes(self) -> Sequence[str]:
        """Return the changes by which an audit tests a cause; none in other runs."""
        changes: Sequence[str] = self.audit["changes"] if self.audit else ()
        return changes

    @cached_property
    def supports(self) -> Supports:
        """Return what the strategy can do."""
        return Supports.of(self.strategy)

    @cached_property
    def degrees(self) -> Degrees:
        """Return into how many parts the training is divided along each axis."""
        axis = self.supports.axis or ("data" if self.supports.shares_batch else "pipeline")
        if axis == MESH:
            return Degrees(**{each.name: self.strategy.get(each.name, 1) for each in fields(Degrees)})
        return Degrees(**{axis: self.workers})

    @property
    def cuts(self) -> bool:
        """Return whether the strategy cuts the model into stages, be it into a single one."""
        return "partition" in self.strategy and (self.supports.axis != MESH or self.degrees.pipeline > 1)

    @property
    def virtual_stages(self) -> int:
        """Return how many stages of the model each worker along the axis of stages has."""
        return self.strategy.get("virtual_stages", 1) if self.cuts else 1

    @property
    def across_hosts(self) -> bool:
        """Return whether the run's processes are on several hosts, which share no memory."""
        return self.hardware.links is not None or self.on_cluster

    @property
    def on_cluster(self) -> bool:
        """Return whether the run's processes are on hosts of a cluster, which share no files either."""
        return self.hardware.engine is not None

    @property
    def synchronous(self) -> bool:
        """Return whether all workers complete each step together, as one update of one model.

        The loss of a synchronous step is the mean over the global batch, and equals that of one device.
        """
        return self.strategy["synchronous"]

    @property
    def reference(self) -> bool:
        """Return whether the strategy is its framework's plain training, with which others are compared."""
        return self.strategy.get("reference") is not None

    @property
    def data_parallel_degree(self) -> int:
        """Return how many workers divide each global batch among them; 1 where each worker sees all."""
        return self.degrees.batch

    @property
    def global_batch(self) -> int:
        """Return the number of samples in an optimizer step of the whole job."""
        return self.batch * self.workers if self.scaling == "weak" else self.batch

    @property
    def worker_batch(self) -> int:
        """Return the number of samples in an optimizer step of one worker, where all have equal shares."""
        return self.global_batch // self.data_parallel_degree

    @property
    def microbatch(self) -> int:
        """Return the number of samples in a forward pass of one worker, where all have equal shares."""
        return self.worker_batch // self.microbatches

    @property
    def warmup_steps(self) -> int:
        """Return how many first steps are left out of every timed figure.

        Steps that a strategy executes and times as one group are left out as one.
        """
        group = self.strategy.get("steps_per_execution", 1)
        return math.ceil(self.hardware.warmup_steps / group) * group

    @property
    def attempts(self) -> int:
        """Return how often the run is measured at most, where others disturb it."""
        return 1 + (self.hardware.repeat_disturbed or 0)

    @property
    def wall_clock_minutes(self) -> float:
        """Return the minutes after which a run is ended, whatever it does: start and evaluation included."""
        return 2 * self.max_minutes + self.hardware.grace_minutes

    @property
    def evaluation_batch(self) -> int:
        """Return the number of test samples in a forward pass.

        The number is large enough to be quick, and small enough to need no more memory than a step does.
        """
        return min(500, max(100, self.batch))


@dataclass(frozen=True, kw_only=True)
class StrategyOptions:
    """A base of strategies' options: a subclass has a field for each key of its file that it reads.

    A field with a default is of an option that not all of its strategies have.
    """

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the options that a run has."""
        names = [each.name for each in fields(cls) if each.name in config.strategy]
        return cls(**{name: config.strategy[name] for name in names})


def load(path: Path) -> Config:
    """Read the configuration of a run from the path of its `config.yaml`."""
    return Config(**yaml.safe_load(path.read_text()))
