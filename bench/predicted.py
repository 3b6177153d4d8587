"""Hold predictions of steps against the runs of the study `predicted`.

python -m bench.predicted profile FOLDER [STUDY]      # profiles its cells: FOLDER/profile.json
python -m bench.predicted FOLDER [results/predicted]  # predicts its runs from that and from each other
python -m bench.predicted memory                      # a few steps of each: its live tensors

A run is predicted by constants that are fitted to the other cells: to all of them, to those of other
strategies, or of other models. The error beyond noise is |prediction - median of the repetitions| less half
their range, which counts up to 4 % of the median, over the median.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bench import runs as runs_of
from src import plan
from src.config import Config, command_line, compose
from src.predict.own import calibration, cost_profile, runs
from src.predict.own.calibration import Run
from src.profile import model

STUDY = "predicted"
MOST_NOISE = 0.04
LEVELS = (0.8, 0.9)
SEEDS = range(1)
MEMORY_STEPS = 8
# By what cells are left out together.
GROUPS: dict[str, Callable[[Run], str]] = {
    "other cells": lambda run: runs.signature(run.step.config),
    "other strategies": lambda run: str(run.step.config.strategy["name"]),
    "other models": lambda run: str(run.step.config.model["name"]),
}


def cells(study: str) -> list[Config]:
    """Return the configurations of a study."""
    found = {
        cell["configuration"]: shlex.split(cell["overrides"])
        for cell in plan.composed(study, None)["cells"].values()
    }
    lines = [command_line.parse(words) for words in found.values()]
    return [config for line in lines for config in compose.cells(line)]


def left_out(known: Sequence[Run], group: Callable[[Run], str]) -> list[float]:
    """Return the seconds predicted of each run by a fit to those of other groups."""
    whole = calibration.fit(known)
    found = [0.0] * len(known)
    for name in sorted({group(run) for run in known}):
        fit = calibration.fit([run for run in known if group(run) != name], whole)
        for place, run in enumerate(known):
            if group(run) == name:
                found[place] = fit.parts(run.step).seconds
    return found


def beyond_noise(run: Run, predicted: float) -> float:
    """Return a prediction's error beyond noise, as a part of what was measured."""
    noise = min(run.half_range, MOST_NOISE * run.seconds)
    return max(0.0, abs(predicted - run.seconds) - noise) / run.seconds


def shown(name: str, errors: Sequence[float]) -> str:
    """Return a line with the median and the 90th percentile of errors."""
    return f"{name:34} median {100 * np.median(errors):5.1f} %   90th {100 * np.quantile(errors, 0.9):5.1f} %"


def coverage(known: Sequence[Run], group: Callable[[Run], str]) -> str:
    """Return a line on how often intervals hold in cells that were left out, by groups of these."""
    held: dict[float, list[bool]] = {level: [] for level in LEVELS}
    widths: dict[float, list[float]] = {level: [] for level in LEVELS}
    whole = calibration.fit(known)
    names = sorted({group(run) for run in known})
    for seed in SEEDS:
        generator = np.random.default_rng(seed)
        order = generator.permutation(len(names))
        for part in np.array_split(order, min(len(names), 8)):
            out = {names[place] for place in part}
            rest = [run for run in known if group(run) not in out]
            fit = calibration.fit(rest, whole)
            seen = calibration.scores(rest, fit, seed)
            for run in known:
                if group(run) in out:
                    error = abs(fit.log_seconds(run.step) - math.log(run.seconds))
                    for level in LEVELS:
                        width, _ = seen.width(run.step, level)
                        held[level].append(error <= width)
                        widths[level].append(width)
    parts = [
        f"{100 * level:.0f} %: holds in {100 * np.mean(held[level]):.0f} %, "
        f"+-{100 * np.median(widths[level]):.0f} %"
        for level in LEVELS
    ]
    return "   ".join(parts)


def report(folder: Path, results: Path) -> None:
    """Print errors and intervals."""
    known, left = runs.measured(runs.finished([results]), cost_profile.read(folder))
    for line in left:
        print(f"left out: {line}")
    print(f"{len(known)} cells")
    print(shown("half the repetitions' range", [run.half_range / run.seconds for run in known]))
    plain = calibration.Fit()
    alone = [plain.parts(run.step).seconds for run in known]
    errors = {"the profile alone": alone} | {name: left_out(known, group) for name, group in GROUPS.items()}
    for name, predicted in errors.items():
        raw = [abs(each / run.seconds - 1) for each, run in zip(predicted, known, strict=True)]
        print(shown(f"{name}, beyond noise", list(map(beyond_noise, known, predicted))))
        print(shown(f"{name}, raw", raw))
    for place, run in enumerate(known):
        config = run.step.config
        ratios = "  ".join(f"{each[place] / run.seconds:.3f}" for each in errors.values())
        print(
            f"{calibration.strategy_of(run.step):22} {config.model['name']:9} {config.hardware.name:6}"
            f"w{config.workers} b{config.batch:<4}m{config.microbatches:<2} {1e3 * run.seconds:8.1f} ms "
            f"+-{100 * run.half_range / run.seconds:4.1f} %  {ratios}"
        )
    whole = calibration.fit(known)
    print(whole.constants)
    print({key: round(math.exp(value), 3) for key, value in whole.factors.items()})
    for name, group in GROUPS.items():
        print(f"intervals, {name}: {coverage(known, group)}", flush=True)


def memory() -> None:
    """Train each cell for a few steps, and print how far off its predicted live tensors are."""
    found = plan.composed(STUDY, None)["cells"].values()
    errors = []
    for words in dict.fromkeys(cell["overrides"] for cell in found):
        given = [word for word in shlex.split(words) if not word.startswith(("out=", "max_minutes="))]
        batch = next(int(word.partition("=")[2]) for word in given if word.startswith("batch="))
        kept = [word for word in given if not word.startswith("dataset.limit=")]
        few = [f"dataset.limit={MEMORY_STEPS * batch}", "memory_tracker=true"]
        metrics = runs_of.train(*kept, *few, out=runs_of.OUT / "predicted-memory")
        measured, predicted = metrics["live_peak_bytes"], metrics["live_predicted_bytes"]
        error = math.nan if predicted is None else predicted / measured - 1
        errors.append(abs(error))
        print(f"{100 * error:+6.2f} %  {measured / 2**20:7.1f} MiB  {' '.join(kept)}", flush=True)
    print(shown(f"{len(errors)} cells, live tensors", errors))


def main() -> None:
    """Profile, predict, or look at memory."""
    if sys.argv[1] == "memory":
        memory()
    elif sys.argv[1] == "profile":
        model.measure(cells(sys.argv[3] if len(sys.argv) > 3 else STUDY), Path(sys.argv[2]))
    else:
        report(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else f"results/{STUDY}"))


if __name__ == "__main__":
    main()
