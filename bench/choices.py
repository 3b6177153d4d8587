"""Hold choices by predictions against the best that was measured, and print what they lose.

python -m bench.choices tables FOLDER          # published tables (`bench/published_tables.py`)
python -m bench.choices PROFILE RESULTS ...    # runs of studies, by a profile of their machine

A place of tables has at least three ways to do the same work, one of runs at least two. Each is chosen
there by predictions that have seen no row of the place; what the choice takes longer than the best way is
its regret, and the best of the first three choices has one, too. Of runs a difference within the ranges of
their repetitions is none.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TypeVar

import numpy as np

from bench import published
from src.config import Config
from src.predict.own import calibration, cost_profile, runs
from src.predict.own.calibration import Run
from src.predict.predictions import Calibration
from src.predict.step import Step

# So many ways a place of published tables has, and one that was run; of so many choices the best counts.
WAYS, WAYS_OF_RUNS, CHOICES = 3, 2, 3
# What a profile's identity (`src/predict/own/cost_profile.py`) says of a run's work and devices.
WORK = (
    "model", "dataset", "task", "precision", "device", "cores_per_device", "optimizer", "momentum", "clipped",
)  # fmt: skip
Measured = TypeVar("Measured", Step, Run)


@dataclass(frozen=True)
class Chosen:
    """A choice at one place.

    Attributes:
        place: where.
        ways: how many there are.
        first, three: the regret of the first choice, and of the best of the first three.
    """

    place: Hashable
    ways: int
    first: float
    three: float


def places(
    known: Sequence[Measured], place_of: Callable[[Measured], Hashable], least: int
) -> dict[Hashable, list[Measured]]:
    """Return the places with at least so many ways to do the same work."""
    found: dict[Hashable, list[Measured]] = {}
    for each in known:
        found.setdefault(place_of(each), []).append(each)
    return {place: ways for place, ways in found.items() if len(ways) >= least}


def regret(
    predicted: Sequence[float], measured: Sequence[float], noise: Sequence[float]
) -> tuple[float, float]:
    """Return the regret of the first choice, and of the best of the first three.

    Args:
        predicted: seconds of each way.
        measured: seconds of each way.
        noise: half of the range of its repetitions, in seconds.
    """
    order = np.argsort(predicted, kind="stable")
    best = int(np.argmin(measured))

    def lost(way: int) -> float:
        over = measured[way] - measured[best]
        return 0.0 if over <= noise[way] + noise[best] else over / measured[best]

    return lost(int(order[0])), min(lost(int(way)) for way in order[:CHOICES])


def place_of_step(step: Step) -> Hashable:
    """Return what a row of a table has in common with others that do the same work."""
    row = step.row
    return (
        row.family,
        row.device,
        row.devices,
        row.devices_per_node,
        row.global_batch,
        row.input,
        row.sequence,
    )


def place_of_run(run: Run) -> Hashable:
    """Return what a run has in common with others that do the same work on the same machine."""
    return work_of(run.step.config)


def work_of(config: Config) -> Hashable:
    """Return what the steps of a run have in common with others that do the same work on the same machine."""
    common = cost_profile.identity(config)
    alike = {key: common[key] for key in WORK} | {"batchnorm": config.batchnorm}
    digest = hashlib.sha256(json.dumps(alike, sort_keys=True).encode()).hexdigest()[:6]
    speeds = tuple(config.hardware.speeds or ())
    named = config.model["name"], config.dataset["name"], digest, config.framework
    return *named, config.global_batch, config.hardware.name, speeds


def of_tables(folder: Path) -> None:
    """Print what choices lose at the places of published tables, and how well rows are ranked elsewhere."""
    for name in ("tensorflow", "mpt", "torchgpipe", "megatron"):
        steps = published.read(name, folder)
        found = []
        for place, ways in places(steps, place_of_step, WAYS).items():
            others = [step for step in steps if step not in ways]
            fit = Calibration.of(others, 0).fit
            measured = [float(step.row.seconds or np.nan) for step in ways]
            predicted = [fit.parts(step).seconds for step in ways]
            found.append(Chosen(place, len(ways), *regret(predicted, measured, [0.0] * len(ways))))
        ranks = _rank_correlation(steps)
        print(f"{name}: {_shown(found)}; rank correlation of {len(steps)} rows' seconds {ranks:.3f}")


def _rank_correlation(steps: Sequence[Step]) -> float:
    """Return Spearman's correlation of published seconds with those predicted by rows of other models."""
    predicted = [0.0] * len(steps)
    for family in {step.row.family for step in steps}:
        fit = Calibration.of([step for step in steps if step.row.family != family], 0).fit
        for place, step in enumerate(steps):
            if step.row.family == family:
                predicted[place] = fit.parts(step).seconds
    measured = [float(step.row.seconds or np.nan) for step in steps]
    ranked = [np.argsort(np.argsort(each)) for each in (predicted, measured)]
    return float(np.corrcoef(ranked[0], ranked[1])[0, 1])


def of_runs(profile: Path, results: Sequence[Path]) -> None:
    """Print what choices lose at each place of studies, by fits to all other places' runs."""
    known, left = runs.measured(runs.finished(results), cost_profile.read(profile))
    for line in left:
        print(f"left out: {line}")
    whole = calibration.fit(known)
    found = []
    for place, ways in places(known, place_of_run, WAYS_OF_RUNS).items():
        fit = calibration.fit([run for run in known if run not in ways], whole)
        predicted = [fit.parts(run.step).seconds for run in ways]
        measured, noise = [run.seconds for run in ways], [run.half_range for run in ways]
        found.append(Chosen(place, len(ways), *regret(predicted, measured, noise)))
        first = ways[int(np.argmin(predicted))]
        best = ways[int(np.argmin(measured))]
        print(
            f"{place}: {len(ways)} ways; chosen {_name(first)}, best {_name(best)}, regret "
            f"{100 * found[-1].first:.1f} %, of three {100 * found[-1].three:.1f} %"
        )
    print(_shown(found))


def _name(run: Run) -> str:
    config = run.step.config
    return f"{calibration.strategy_of(run.step)} w{config.workers} m{config.microbatches}"


def _shown(found: Sequence[Chosen]) -> str:
    if not found:
        return "no place with so many ways"
    first, three = [each.first for each in found], [each.three for each in found]
    return (
        f"{len(found)} places; regret of the first choice {100 * mean(first):.2f} % on average, "
        f"{100 * max(first):.1f} % at most, of the best of three {100 * mean(three):.2f} %"
    )


def main() -> None:
    """Hold choices against what was measured."""
    if sys.argv[1] == "tables":
        of_tables(Path(sys.argv[2]))
    else:
        of_runs(Path(sys.argv[1]), [Path(each) for each in sys.argv[2:]])


if __name__ == "__main__":
    main()
