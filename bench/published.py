"""Hold predictions against published tables, and print how far off they are, as Markdown.

python -m bench.published FOLDER [--draws 20]

FOLDER has the tables (`bench/published_tables.py`). Of TensorFlow's and MPT's, 20 rows drawn at random
calibrate and all others are predicted, draw by draw; a model is left out with as many rows of the others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import published_tables
from src.predict.calibrate import Fit
from src.predict.predictions import Calibration
from src.predict.row import parse
from src.predict.step import Step

CALIBRATING = 20
LEVELS = (0.8, 0.9)


@dataclass(frozen=True)
class Held:
    """Predictions of rows outside calibration, held against what was measured.

    Attributes:
        errors: |predicted / measured - 1| of each.
        inside: whether each lies in its interval, a level each.
        widths: half of each interval in logarithms, a level each.
    """

    errors: tuple[float, ...]
    inside: tuple[tuple[bool, ...], ...]
    widths: tuple[tuple[float, ...], ...]


def held(calibrating: Sequence[Step], others: Sequence[Step], seed: int) -> Held:
    """Calibrate, and predict the others."""
    calibration = Calibration.of(calibrating, seed)
    errors, inside, widths = [], [], []
    for step in others:
        assert step.row.seconds is not None
        errors.append(abs(calibration.fit.parts(step).seconds / step.row.seconds - 1))
        found = [calibration.predict(step, level) for level in LEVELS]
        inside.append(tuple(each.low <= step.row.seconds <= each.high for each in found))
        widths.append(tuple(float(np.log(each.high / each.low)) / 2 for each in found))
    return Held(tuple(errors), tuple(inside), tuple(widths))


def drawn(steps: Sequence[Step], seed: int) -> Held:
    """Calibrate by rows drawn at random, and predict all others."""
    chosen = set(np.random.default_rng(seed).permutation(len(steps))[:CALIBRATING].tolist())
    return held(
        [step for i, step in enumerate(steps) if i in chosen],
        [step for i, step in enumerate(steps) if i not in chosen],
        seed,
    )


def without_a_model(steps: Sequence[Step], seed: int) -> Held:
    """Calibrate by rows of all models but one, drawn at random, and predict that one, for each of them."""
    generator = np.random.default_rng(seed)
    found = []
    for family in sorted({step.row.family for step in steps}):
        others = [step for step in steps if step.row.family != family]
        chosen = [others[i] for i in generator.permutation(len(others))[:CALIBRATING]]
        found.append(held(chosen, [step for step in steps if step.row.family == family], seed))
    return _pooled(found)


def errors_of(fit: Fit, steps: Sequence[Step]) -> np.ndarray:
    """Return |predicted / measured - 1| of each step."""
    return np.array([abs(fit.parts(step).seconds / (step.row.seconds or np.nan) - 1) for step in steps])


def _pooled(parts: Sequence[Held]) -> Held:
    return Held(
        tuple(error for each in parts for error in each.errors),
        tuple(row for each in parts for row in each.inside),
        tuple(row for each in parts for row in each.widths),
    )


def _line(name: str, how: str, priors: float, found: Held) -> str:
    inside, widths = np.array(found.inside), np.median(np.array(found.widths), axis=0)
    error, errors = np.mean(found.errors), np.array(found.errors)
    return (
        f"| {name} | {how} | {priors:.1%} | {error:.1%} | {np.median(errors):.1%} | "
        f"{np.quantile(errors, 0.9):.1%} | {inside[:, 0].mean():.0%} (± {np.expm1(widths[0]):.0%}) | "
        f"{inside[:, 1].mean():.0%} (± {np.expm1(widths[1]):.0%}) |"
    )


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draws", type=int, default=20)
    options = parser.parse_args()
    print("| table | rows that calibrate | by priors | mean | median | 90 % | inside 80 % | inside 90 % |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    with ProcessPoolExecutor() as pool:
        for name in ("tensorflow", "mpt"):
            steps = read(name, options.folder)
            priors = float(errors_of(Fit(), steps).mean())
            ways: list[tuple[str, Callable[[Sequence[Step], int], Held]]] = [
                (f"{CALIBRATING} drawn", drawn),
                (f"{CALIBRATING} of other models", without_a_model),
            ]
            for how, way in ways:
                seeds = range(options.draws)
                found = list(pool.map(way, [steps] * options.draws, seeds))
                print(_line(name, how, priors, _pooled(found)), flush=True)
    for name in ("torchgpipe", "megatron"):
        steps = read(name, options.folder)
        errors = errors_of(Fit(), steps)
        mean = float(errors.mean())
        print(
            f"| {name} | none | {mean:.1%} | {mean:.1%} | {np.median(errors):.1%} | "
            f"{np.quantile(errors, 0.9):.1%} | | |"
        )
        if name == "torchgpipe":
            print(_line(name, "all of other models", mean, without_a_model(steps, 0)))
    return 0


def read(name: str, folder: Path) -> list[Step]:
    """Read one of the tables."""
    lines: list[dict[str, str]] = getattr(published_tables, name)(folder)
    return [Step(parse(line)) for line in lines]


if __name__ == "__main__":
    sys.exit(main())
