"""Measure a few steps of the cells of studies, and profile them, so that choices can be held against them.

python -m bench.study_steps FOLDER STUDY [...] [--places N] [--ways N]
                                                # FOLDER/profile.json and FOLDER/runs, for `bench.choices`

Cells do a study's steps, but no more of these than tell how long one takes: each is run three times, and all
once before any again. With `--places` and `--ways` some are drawn of a study's places, and of what does the
same work at one. Called again, it profiles them anew, and runs what hasn't ended.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import math
import random
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from bench import choices
from bench import runs as runs_of
from src import plan
from src.config import Config, ConfigError, command_line, compose
from src.predict.own import added, calibration, cost_profile, steps
from src.profile import model
from src.run import files
from src.run.status import MEASURED
from src.run.tables import read_mapping

# The words of a command line and what they are composed to.
Cell = tuple[list[str], Config]
Drawn = TypeVar("Drawn")
ROUNDS = 3
# Steps are at least so many, and take at least so many seconds, but for minutes that end them.
STEPS, WARMUP, SECONDS, MINUTES = 28, 3, 3.0, 0.5
# Where workers don't wait for each other a step is what the rate says, for which more of them are needed.
STEPS_OF_A_RATE = 60
# As many samples as every dataset of the studies has to train on, but for those that are limited further.
SAMPLES = 2048
EPOCHS = 1000
# What doesn't change a step, or says for how long a study trains.
LEFT_OUT = (
    "dataset.limit", "dataset.test_limit", "epochs", "evaluate_every", "max_minutes", "memory_tracker", "out",
    "seed", "stop_at_target", "target_accuracy",
)  # fmt: skip


def cells(study: str) -> Iterator[Cell]:
    """Yield the words and the configuration of each different step of a study."""
    seen = set()
    for cell in plan.composed(study, None)["cells"].values():
        words = [word for word in shlex.split(cell["overrides"]) if word.partition("=")[0] not in LEFT_OUT]
        if tuple(words) not in seen:
            seen.add(tuple(words))
            (config,) = compose.cells(command_line.parse(words))
            yield words, config


def few_steps(config: Config, seconds: float) -> list[str]:
    """Return the words by which a run ends after a few steps that take about so many seconds each."""
    by_rate = bool(config.hardware.speeds) and not config.synchronous
    least = max(STEPS_OF_A_RATE if by_rate else STEPS, 4 * math.lcm(*added.every(config)))
    count = max(least, math.ceil(SECONDS / seconds))
    # A dataset has whole steps, one at least.
    limit = min(count, max(1, SAMPLES // config.global_batch)) * config.global_batch
    epochs = math.ceil(count * config.global_batch / limit)
    fewer = [f"dataset.limit={limit}", "dataset.test_limit=64", f"epochs={epochs}"]
    return [*fewer, f"hardware.warmup_steps={WARMUP}"]


def chosen(study: str, places: int | None = None, ways: int | None = None) -> list[Cell]:
    """Return the cells of a study that can be predicted and have others beside them that do the same work.

    Args:
        study: the name of a study.
        places: how many places are drawn at random; all by default.
        ways: how many cells are drawn at each; all by default.
    """
    known: dict[object, list[Cell]] = {}
    for words, config in cells(study):
        try:
            cost_profile.kind_of(config)
        except ConfigError as error:
            print(f"left out: {' '.join(words)}: {error}")
            continue
        if not config.hardware.share_devices:
            known.setdefault(choices.work_of(config), []).append((words, config))
    several = {place: found for place, found in known.items() if len(found) > 1}
    drawn = _drawn(list(several), places, study)
    # Which ways are drawn at a place doesn't depend on how many places are.
    return [cell for place in drawn for cell in _drawn(several[place], ways, repr(place))]


def _drawn(every: Sequence[Drawn], count: int | None, seed: str) -> Sequence[Drawn]:
    return every if count is None or count >= len(every) else random.Random(seed).sample(every, count)


def measure(folder: Path, found: Sequence[Cell]) -> None:
    """Profile cells, and run each of them three times."""
    # A rehearsal has steps enough, and ends by itself.
    model.measure([dataclasses.replace(config, epochs=EPOCHS) for _, config in found], folder)
    profile, believed = cost_profile.read(folder), calibration.Fit()
    for turn in range(ROUNDS):
        order = random.Random(turn).sample(found, len(found))
        for number, (words, config) in enumerate(order, 1):
            name = hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]
            out = folder / "runs" / f"{name}-r{turn}"
            if read_mapping(out / files.METRICS).get("status") in MEASURED:
                continue
            print(f"round {turn + 1} of {ROUNDS}, {number} of {len(order)}: {' '.join(words)}", flush=True)
            try:
                few = few_steps(config, believed.parts(steps.of(config, profile)).seconds)
                runs_of.train(*words, *few, out=out, minutes=MINUTES)
            except (RuntimeError, ConfigError) as error:
                print(f"failed: {error}", flush=True)


def main() -> None:
    """Measure the studies that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m bench.study_steps", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("studies", nargs="+")
    parser.add_argument("--places", type=int, help="how many are drawn of a study's places")
    parser.add_argument("--ways", type=int, help="how many cells are drawn at a place, two at least")
    asked = parser.parse_args()
    if asked.places is not None and asked.places < 1:
        parser.error(f"--places {asked.places}: must be 1 or more")
    if asked.ways is not None and asked.ways < 2:
        parser.error(f"--ways {asked.ways}: must be 2 or more, for a choice is among several")
    measure(
        asked.folder, [cell for study in asked.studies for cell in chosen(study, asked.places, asked.ways)]
    )


if __name__ == "__main__":
    main()
