"""A LightningModule trains as under Lightning's own Trainer on one device, and ranks train it as one does.

All in float64. Lightning's Trainer is fed the order of samples that runs have, and draws what they draw.
"""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from src.data import available
from tests.strategies.parity import rows
from tests.support import config, ranks

pytestmark = pytest.mark.slow
HERE = "tests.strategies.own_lightning"
DEMOS = "pytorch_lightning.demos.boring_classes"
MODULE = "tests.strategies.own_training_rank"
BOUND, LIMIT_SECONDS = 1e-6, 600


def own(name: str, *words: str, data: str = "Data") -> tuple[str, ...]:
    kind = "lightning" if data == "Data" else "torch"
    return (
        "model=lightning", f"model.path={HERE}.{name}", f"dataset={kind}", f"dataset.module={HERE}.{data}",
        "epochs=3", *words,
    )  # fmt: skip


def demo(name: str) -> tuple[str, ...]:
    return (
        "model=lightning", f"model.path={DEMOS}.{name}",
        "dataset=torch", f"dataset.module={DEMOS}.RandomDataset",
        "+dataset.options.size=32", "+dataset.options.length=64", "batch=4", "epochs=2",
    )  # fmt: skip


IMAGES = (
    "model=lightning", f"model.path={HERE}.Images", "batch=32", "dataset.limit=128", "dataset.test_limit=41",
    "epochs=2",
)  # fmt: skip
DROPPED = "+model.options.dropout=0.2"
TEXT = own(
    "Transformer", "+model.options.vocab_size=40", "+dataset.options.folder=TEXT", "batch=4", data="Words"
)
# Each is trained by a run under `single`, and by Lightning's own Trainer.
ALONE = {
    "boring": demo("BoringModel"),
    "manual": demo("ManualOptimBoringModel"),
    "transformer": (*TEXT, "epochs=1", "dataset.limit=24", "dataset.test_limit=6"),
    "hooked": own("Hooked", DROPPED),
    "whole": own("Hooked"),
    "hooked-parts": own("Hooked", DROPPED, "microbatches=2"),
    "everything": own("Everything", "microbatches=2"),
    "jittered": own("Hooked", "batch=8", data="Points"),
    "adversaries": own("Adversaries"),
    "images": IMAGES,
    "measured": own("Measured", "evaluate_every=4"),
}
DDP = ("strategy=ddp", "workers=2")
PAIR = {
    "ddp": (*own("Hooked"), *DDP),
    "ddp-shares": (*own("Hooked"), *DDP, "batch_shares=[11,5]"),
    "ddp-parts": (*own("Plain"), *DDP, "microbatches=2"),
    "ddp-jittered": (*own("Hooked", "batch=8", data="Points"), *DDP),
    "ddp-plain": (*own("Plain"), *DDP),
    "ddp-measured": (*own("Measured"), *DDP),
    "ddp-manual": (*demo("ManualOptimBoringModel"), *DDP),
    "ddp-adversaries": (*own("Adversaries"), *DDP),
    "local": (
        *own("Plain", "optimizer.momentum=0"),
        "strategy=local_sgd",
        "workers=2",
        "strategy.sync_every=1",
    ),
}
# A mistake, and the case that it is made in.
MISTAKES = {"no weight": "ddp-shares"}
WANTED = {
    "ddp": "whole", "ddp-shares": "whole", "ddp-parts": "plain", "ddp-jittered": "jittered",
    "ddp-plain": "plain", "local": "plain-sgd", "mpi": "whole",
    "ddp-measured": "measured", "ddp-manual": "manual",
    "ddp-adversaries": "adversaries", "mpi-adversaries": "adversaries",
}  # fmt: skip
FURTHER = {
    "plain": own("Plain"),
    "plain-sgd": own("Plain", "optimizer.momentum=0"),
}


def write(folder: Path, cases: dict[str, tuple[tuple[str, ...], str | None]]) -> None:
    for name, (words, _) in cases.items():
        (folder / name).mkdir(parents=True)
        chosen = config(*(word.replace("=TEXT", f"={folder.parent}") for word in words))
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(dataclasses.asdict(chosen)))
    (folder / "cases.json").write_text(json.dumps([(name, change) for name, (_, change) in cases.items()]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    available.ensure(config(*IMAGES).dataset)
    random = np.random.default_rng(0)
    words = [" ".join(f"w{number}" for number in random.integers(0, 30, 20)) for _ in range(20)]
    (folder / "wikitext-2.txt").write_text("\n".join(words))
    alone = {name: (words, None) for name, words in {**ALONE, **FURTHER}.items()}
    alone |= {f"{name}-lightning": (words, "lightning") for name, words in ALONE.items()}
    alone |= {"no-schedule": (ALONE["hooked"], "no schedule")}
    pair = {name: (words, None) for name, words in PAIR.items()}
    pair |= {mistake.replace(" ", "-"): (PAIR[name], mistake) for mistake, name in MISTAKES.items()}
    pair["apart"] = (*own("ByOwnSamples"), *DDP), None
    by_mpi = ("strategy=mpi", "workers=2")
    mpi = {"mpi": ((*ALONE["whole"], *by_mpi), None)}
    mpi["mpi-adversaries"] = (*ALONE["adversaries"], *by_mpi), None
    for name, cases, strategy, world in (
        ("alone", alone, "ddp", 1), ("pair", pair, "ddp", 2), ("mpiexec", mpi, "mpi", 2)
    ):  # fmt: skip
        write(folder / name, cases)
        with ranks(
            MODULE, [folder / name, strategy], world, folder / name, words=[f"strategy={strategy}"]
        ) as job:
            job.wait(LIMIT_SECONDS)
    return folder


def losses(folder: Path) -> np.ndarray:
    """The global batch's mean loss of each step."""
    if (kept := folder / "0.json").exists():
        return np.array(json.loads(kept.read_text()))
    tables = [rows(path) for path in sorted(folder.glob("[0-9]/steps.csv"))]
    own = [[float(row["loss"]) for row in table] for table in tables]
    return np.average(own, axis=0, weights=[[int(row["samples"]) for row in table] for table in tables])


def gap(one: Path, other: Path) -> float:
    """The largest relative gap of losses and weights."""
    assert len(losses(one)) == len(losses(other)) > 5
    pairs = [(losses(one), losses(other))]
    first, second = (np.load(folder / "0.npz") for folder in (one, other))
    pairs += [(first[name], second[name]) for name in first.files]
    return max(float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-12)) for a, b in pairs)


@pytest.mark.parametrize("name", ALONE)
def test_one_device_trains_as_lightning_does(folder: Path, name: str) -> None:
    assert gap(folder / "alone" / name, folder / "alone" / f"{name}-lightning") < BOUND


def test_each_of_its_methods_is_called_when_lightning_calls_it(folder: Path) -> None:
    calls = [
        json.loads((folder / "alone" / name / "0-calls.json").read_text())
        for name in ("everything", "everything-lightning")
    ]
    assert len(set(calls[0])) > 25
    assert calls[0] == calls[1]


def test_a_scheduler_that_is_not_stepped_is_seen(folder: Path) -> None:
    assert gap(folder / "alone" / "no-schedule", folder / "alone" / "hooked-lightning") > 1e-3


@pytest.mark.parametrize("name", WANTED)
def test_ranks_train_as_one_device_does(folder: Path, name: str) -> None:
    job = "mpiexec" if name.startswith("mpi") else "pair"
    assert gap(folder / job / name, folder / "alone" / WANTED[name]) < BOUND
    copies = [np.load(folder / job / name / f"{rank}.npz") for rank in range(2)]
    assert all(np.allclose(copies[0][each], copies[1][each], atol=1e-12) for each in copies[0].files)


def test_a_loss_that_is_not_weighed_by_samples_is_seen(folder: Path) -> None:
    assert gap(folder / "pair" / "no-weight", folder / "alone" / "whole") > 1e-4


def test_copies_that_come_apart_are_refused(folder: Path) -> None:
    told = [(folder / "pair" / "apart" / f"{rank}-refused.txt").read_text() for rank in range(2)]
    assert told[0] == told[1] and "copies of model.0.bias have come apart" in told[0]


def logged(folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """What was logged in validation and in training, at the last evaluation."""
    last = list(csv.DictReader((folder / "0" / "epochs.csv").open(newline="")))[-1]
    return json.loads(last["metrics"]), json.loads(last["train_metrics"])


def test_what_it_logs_is_what_lightning_has(folder: Path) -> None:
    wanted = json.loads((folder / "alone" / "whole-lightning" / "0-logged.json").read_text())
    for place in ("alone/whole", "pair/ddp", "mpiexec/mpi"):
        tested, trained = logged(folder / place)
        assert tested["val_loss"] == pytest.approx(wanted["val_loss"], rel=BOUND)
        assert tested["validation_loss"] == pytest.approx(wanted["val_loss"], rel=BOUND)
        assert trained["train_error"] == pytest.approx(wanted["train_error_epoch"], rel=BOUND)
        assert trained["weights"] == pytest.approx(wanted["weights"], rel=BOUND)


def test_metrics_of_torchmetrics_are_those_of_all_ranks(folder: Path) -> None:
    wanted = json.loads((folder / "alone" / "measured-lightning" / "0-logged.json").read_text())
    for place in ("alone/measured", "pair/ddp-measured"):
        tested, trained = logged(folder / place)
        assert tested["val_mae"] == pytest.approx(wanted["val_mae"], rel=BOUND)
        assert trained["mae"] == pytest.approx(wanted["mae"], rel=BOUND)
