"""Find words without learning, as a bound that a text detector has to pass: `python -m bench.text_baseline`.

The words of the command line are those of a run, whose scenes are used:

    python -m bench.text_baseline dataset=icdar2015 dataset.source=generated model=east

A threshold tells dark and light pixels from the rest; connected pixels that are as large, as long and as full
as letters are joined into words, side by side, and a word's rectangle is the smallest one around it
(`text_finder`). Its parameters are searched for on training scenes, for the F-measure by ICDAR's protocol;
what these find on the test scenes is printed, for Otsu's threshold and for the mean of a window around each
pixel.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from bench import runs
from bench.text_finder import Components, Parameters, candidate_letters, find
from src.config import Config, command_line, compose
from src.data import available, prepared
from src.data.arrays import Split
from src.tasks.torch.text_detection.matching import Counts, count

Grid = Mapping[str, Sequence[Any]]
# The search goes on from so many of the best random points of a grid.
STARTS = 3
GRID = {
    "lowest": (3, 4, 5, 6, 7, 8),
    "highest": (25, 32, 40, 50, 70),
    "widest": (1.2, 1.6, 2.0, 3.0, 5.0),
    "fullest": (0.6, 0.65, 0.7, 0.75, 0.8, 0.9, 1.0),
    "gap": (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7),
    "ratio": (1.3, 1.6, 1.8, 2.0, 2.3, 3.0),
    "shift": (0.2, 0.3, 0.4, 0.5, 0.7, 1.0),
    "difference": (8, 15, 20, 25, 35, 50, 255),
    "letters": (1, 2, 3, 4),
    "margin": (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0),
}
GRIDS = {
    "Otsu's": {"window": (0,), "offset": (0,), **GRID},
    "mean of a window": {"window": (11, 15, 21, 31, 45), "offset": (6, 10, 14, 18, 24), **GRID},
}


class Scene:
    """An image with its words, which remembers the components of each threshold."""

    def __init__(self, image: np.ndarray, words: np.ndarray, ignored: np.ndarray) -> None:
        """Hold an image [height, width, 3] with words [m, 4, 2] and flags [m] of the ignored ones."""
        self._image, self._words, self._ignored = image, words, ignored
        self._components: dict[tuple[int, int], Components] = {}

    def count(self, parameters: Parameters) -> Counts:
        """Return what the scene adds to the counts of what is found."""
        threshold = parameters.window, parameters.offset
        if threshold not in self._components:
            self._components[threshold] = candidate_letters(self._image, *threshold)
        return count(find(self._components[threshold], parameters), self._words, self._ignored)


def total(scenes: Sequence[Scene], parameters: Parameters) -> Counts:
    """Return the counts of all scenes together."""
    return Counts(*np.sum([scene.count(parameters) for scene in scenes], axis=0).tolist())


def ratios(counts: Counts) -> tuple[float, float]:
    """Return precision and recall; 0 where nothing is found or to be found."""
    return counts.matched / max(counts.found, 1), counts.matched / max(counts.words, 1)


def f_measure(counts: Counts) -> float:
    """Return the harmonic mean of precision and recall; 0 where nothing is found or to be found."""
    return 2 * counts.matched / (counts.found + counts.words) if counts.matched else 0.0


def search(scenes: Sequence[Scene], grid: Grid, draws: int) -> Parameters:
    """Return the parameters of a grid that have the greatest F-measure on scenes, as far as is found.

    After `draws` random points of the grid (seeded), one parameter after the other takes the best of its
    values, from the best few of them, until none is better.
    """
    random = np.random.default_rng(0)

    def drawn() -> Parameters:
        return Parameters(
            **{name: values[int(random.integers(len(values)))] for name, values in grid.items()}
        )

    @cache
    def quality(point: Parameters) -> float:
        return f_measure(total(scenes, point))

    points = dict.fromkeys(drawn() for _ in range(draws))
    found = []
    for point in sorted(points, key=quality, reverse=True)[:STARTS]:
        before = None
        while point != before:
            before = point
            for name, values in grid.items():
                others = (dataclasses.replace(point, **{name: value}) for value in values)
                point = max((point, *others), key=quality)
        found.append(point)
    return max(found, key=quality)


def scenes(split: Split, most: int) -> list[Scene]:
    """Return the first scenes of a split, `most` at most."""
    samples = split.read(slice(most))
    return [
        Scene(image, words[:number], ignored[:number])
        for image, words, number, ignored in zip(samples.inputs[0], *samples.targets, strict=True)
    ]


class Found(NamedTuple):
    """The parameters that a search has found, and what they find on training and on test scenes."""

    parameters: Parameters
    training: Counts
    test: Counts


def measure(config: Config, most: int, draws: int) -> dict[str, Found]:
    """Search with either threshold on `most` training scenes; return what each finds, by its name."""
    available.ensure(config.dataset)
    data = prepared.load(config.dataset)
    training, test = scenes(data.train, most), scenes(data.test, len(data.test))
    found = {}
    for name, grid in GRIDS.items():
        parameters = search(training, grid, draws)
        found[name] = Found(parameters, total(training, parameters), total(test, parameters))
    return found


def table(measured: Mapping[str, Found], rows: Sequence[str] = ()) -> str:
    """Return a table of what thresholds find, with further rows, and the parameters below it."""
    lines = ["| | training F | test F | precision | recall |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, found in measured.items():
        figures = f_measure(found.training), f_measure(found.test), *ratios(found.test)
        lines.append(f"| {name} | {' | '.join(f'{figure:.3f}' for figure in figures)} |")
    described = (f"{name}: {json.dumps(dataclasses.asdict(each[0]))}" for name, each in measured.items())
    return "\n".join([*lines, *rows, *(f"\n{words}" for words in described)])


def main() -> int:
    """Search with either threshold, print the table, which bench/out/ keeps with the parameters; return 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.text_baseline", description=__doc__)
    parser.add_argument("--draws", type=int, default=200, help="random points of the grid, per threshold")
    parser.add_argument("--scenes", type=int, default=100, help="training scenes to search on")
    parser.add_argument("words", nargs="+", metavar="KEY=VALUE", help="words of a run's command line")
    arguments = parser.parse_args()
    (config,) = compose.cells(command_line.parse(arguments.words))
    text = table(measure(config, arguments.scenes, arguments.draws))
    print(text)
    runs.OUT.mkdir(parents=True, exist_ok=True)
    (runs.OUT / "text_baseline.md").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
