"""What parity tests share: cases, how they are trained, and how far apart their outcomes are."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from src.run import files
from tests.support import config, ranks

BOUND = 1e-9
STEPS = 10
# At the lowest priority, beside other tests.
LIMIT_SECONDS = 900
MODULE = "tests.strategies.parity_rank"
CNN = ("model=cnn", "batch=32")
MLP = ("model=mlp", "model.dropout=0", "batch=32")
# Text, with two heads for each of keys and values.
GPT = (
    "model=gpt", "model.layers=2", "model.width=16", "model.heads=4", "model.kv_heads=2", "batch=32",
    "dataset=gcide", "dataset.source=generated", "dataset.options.length=16",
)  # fmt: skip
# Its buffers, which are only read.
TABLES = {"cosines", "sines"}
# With BatchNorm.
NORMED = ("model=custom", "model.path=tests.plugin.model.tiny.residual", "batch=32")
# All that may change the samples of a step, and all that may change an update but for clipping: a batch of 32
# has half the rate of one of 128.
UNCLIPPED = (
    "dataset.augment=crop_flip", "dataset.shuffle_window=64",
    "optimizer.lr=0.04", "optimizer.weight_decay=0.05", "optimizer.scale_lr=sqrt",
    "optimizer.warmup_steps=4", "optimizer.schedule=cosine",
)  # fmt: skip
# Less than most gradients' norms, and more than some.
TERMS = (*UNCLIPPED, "optimizer.clip_norm=1.3")
ADAMW = ("optimizer.name=adamw", *TERMS, "optimizer.lr=0.004")
# The first checkpoint that is due, in the middle of the epoch, is kept.
SAVED = "checkpoint_every=5"


@dataclass(frozen=True)
class Case:
    """One training; `change` is something that tests/strategies/parity_rank.py does to it.

    It goes on from the checkpoint of the case `resumes`, which its job has trained before.
    """

    name: str
    words: tuple[str, ...]
    change: str | None = None
    resumes: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What one rank ended with, the global batch's mean loss of each step, and what of it it recorded."""

    losses: np.ndarray
    tensors: dict[str, np.ndarray]
    evaluation: tuple[float, float]
    own_losses: tuple[float, ...] = ()
    # (exchanges, bytes) of a step by axis and kind.
    exchanges: Mapping[tuple[str, str], tuple[float, float]] = dataclasses.field(default_factory=dict)

    def vector(self, kind: str) -> np.ndarray:
        """All of the `parameters`, `gradients` or `buffers` as one vector."""
        vectors = [self.tensors[name].ravel() for name in sorted(self.tensors) if name.startswith(f"{kind}/")]
        return np.concatenate([np.zeros(0), *vectors])


def gaps(outcome: Outcome, reference: Outcome) -> dict[str, float]:
    """|a - b| / |b| of losses, parameters, gradients and buffers."""
    assert outcome.tensors.keys() == reference.tensors.keys()
    kinds = ("parameters", "gradients", "buffers")
    pairs = {kind: (outcome.vector(kind), reference.vector(kind)) for kind in kinds}
    pairs["losses"] = outcome.losses, reference.losses
    return {
        kind: float(np.linalg.norm(a - b) / max(np.linalg.norm(b), np.finfo(float).tiny))
        for kind, (a, b) in pairs.items()
    }


def differences(outcome: Outcome, reference: Outcome) -> list[str]:
    """The parity check: what is further apart than `BOUND`."""
    return [kind for kind, gap in gaps(outcome, reference).items() if not gap <= BOUND]


def write(folder: Path, cases: tuple[Case, ...], steps: int = STEPS) -> None:
    for case in cases:
        (folder / case.name).mkdir(parents=True)
        batch = next(int(word.removeprefix("batch=")) for word in case.words if word.startswith("batch="))
        chosen = config(*case.words, f"dataset.limit={steps * batch}")
        if case.resumes is not None:
            name = files.CHECKPOINTS[chosen.framework]
            chosen = dataclasses.replace(chosen, resume=str(folder / case.resumes / name))
        (folder / f"{case.name}.yaml").write_text(yaml.safe_dump(dataclasses.asdict(chosen)))
    (folder / "cases.json").write_text(json.dumps([(case.name, case.change) for case in cases]))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read(folder: Path) -> list[Outcome]:
    """Every rank's outcome of one case."""
    saved = sorted(folder.glob("[0-9].npz"))
    recorded = [rows(path.with_suffix("") / "steps.csv") for path in saved]
    steps = [[float(row["loss"]) for row in own] for own in recorded]
    samples = [[int(row["samples"]) for row in own] for own in recorded]
    epoch = rows(folder / "0" / "epochs.csv")[-1]
    evaluation = float(epoch["loss"]), float(epoch["score"])
    # A rank's loss is the mean over its own share.
    losses = np.average(steps, axis=0, weights=samples)
    return [
        Outcome(losses, dict(np.load(path)), evaluation, tuple(own), exchanges(path.with_suffix("")))
        for path, own in zip(saved, steps, strict=True)
    ]


def exchanges(folder: Path) -> dict[tuple[str, str], tuple[float, float]]:
    """What a rank's record says that it has exchanged in a step."""
    found = json.loads((folder / "record.json").read_text()).get("exchanges", [])
    return {(axis, kind): (count, size) for axis, kind, _, count, size in found}


def joined(outcomes: list[Outcome], *, shared: str | None = None) -> Outcome:
    """The stages' tensors as one model's; every rank records the same losses.

    Those of the parameter `shared`, and tables, may be on several stages, which then have the same.
    """
    names = [name for outcome in outcomes for name in outcome.tensors]
    twice = {name for name in names if names.count(name) > 1}
    known = {shared} if shared else set()
    assert {name.partition("/")[2] for name in twice} - TABLES == known, f"on two stages: {sorted(twice)}"
    for name in twice:
        held = [outcome.tensors[name] for outcome in outcomes if name in outcome.tensors]
        assert all(np.array_equal(value, held[0]) for value in held), f"{name} differs between its stages"
    assert all(outcome.losses.tolist() == outcomes[0].losses.tolist() for outcome in outcomes)
    tensors = {name: value for outcome in outcomes for name, value in outcome.tensors.items()}
    return Outcome(outcomes[0].losses, tensors, outcomes[0].evaluation)


# Name -> cases, strategy whose launcher starts the ranks, processes.
Jobs = Mapping[str, tuple[tuple[Case, ...], str, int]]


def train(jobs: Jobs, folder: Path, limit: float = LIMIT_SECONDS) -> None:
    """Train each job's cases in a folder of its name; all jobs run at once."""
    with contextlib.ExitStack() as running:
        started = []
        for name, (cases, strategy, world) in jobs.items():
            write(folder / name, cases)
            arguments, words = [folder / name, strategy], [f"strategy={strategy}"]
            started.append(running.enter_context(ranks(MODULE, arguments, world, folder / name, words=words)))
        for processes in started:
            processes.wait(limit)


def outcomes(jobs: Jobs, folder: Path) -> dict[str, list[Outcome]]:
    """Every case's outcomes, a rank each, by the case's name."""
    return {
        case.name: read(folder / name / case.name) for name, (cases, *_) in jobs.items() for case in cases
    }
