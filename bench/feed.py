"""Compare how many images/s are fed, augmented and normalised, without training: `python -m bench.feed`.

Every contestant crops padded images at random, mirrors half of them and normalises them to fp32, on the same
two cores: a torch rank's feed, and the usual pipelines of torchvision and of Keras, each from JPEG files and
from the same pixels in an array.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from bench import runs, synthetic
from bench.compare import Comparison, ratios, table
from bench.rounds import collect
from src.data.prepare import prepare
from src.data.samples import ArraySource, Splits
from src.launch.spawn import KEEP_FREED_MEMORY
from src.machine.devices import usable_cores

# Images by their side: as many as take tens of MB.
SIDES = {64: 4096, 224: 1024}
CLASSES = 8
QUALITY = 90
OWN = "Scaleguide"
# Kind and script of each contestant, and by how much the own feed is to be faster.
CONTESTANTS = {
    OWN: ("prepared", "", 0.0),
    "torchvision, files": ("files", "feed_torchvision.py", 5.0),
    "Keras, files": ("files", "feed_keras.py", 5.0),
    "torchvision, arrays": ("arrays", "feed_torchvision.py", 1.5),
    "tf.data, arrays": ("arrays", "feed_keras.py", 1.5),
}


def main() -> int:
    """Run the rounds and print the table, which bench/out/ keeps with every figure behind it; return 0."""
    rounds = runs.parse_rounds("feed", __doc__)
    comparisons: list[Comparison] = []
    figures: dict[str, dict[str, list[float]]] = {}
    for side, count in SIDES.items():
        folder = make_data(runs.OUT / f"feed-{side}", side, count)
        rates = collect([measure(folder, side, number) for number in range(rounds)])
        figures[str(side)] = rates
        comparisons += [
            Comparison(f"{side}x{side}: {OWN} / {name}", ratios(rates[OWN], rates[name]), goal)
            for name, (*_, goal) in CONTESTANTS.items()
            if name != OWN
        ]
        print(table(comparisons), flush=True)
    (runs.OUT / "feed.md").write_text(table(comparisons) + "\n")
    (runs.OUT / "feed.json").write_text(json.dumps({"samples_per_second": figures}, indent=1))
    return 0


def measure(folder: Path, side: int, number: int) -> dict[str, float]:
    """Return each contestant's images/s in a round; another one goes first in each."""
    names = list(CONTESTANTS)
    first = number % len(names)
    rates = {
        name: json.loads(feed(name, folder, side))["samples_per_second"]
        for name in names[first:] + names[:first]
    }
    line = ", ".join(f"{name} {rates[name]:,.0f}" for name in names)
    print(f"feed {side}x{side}, round {number + 1}: {line}", file=sys.stderr, flush=True)
    return rates


def feed(name: str, folder: Path, side: int, *further: str) -> str:
    """Run a contestant with `further` arguments on the first two cores; return the last line it prints."""
    kind, script, _ = CONTESTANTS[name]
    own = name == OWN
    command = [sys.executable, *(["-m", "bench.own_feed"] if own else [str(runs.PEERS / script)])]
    arguments = [kind, f"--data={folder}", f"--side={side}", *further]
    cores = set(usable_cores()[:2])
    # The memory of a rank is managed as for every rank.
    output = runs.run_command([*command, *arguments], cores, KEEP_FREED_MEMORY if own else None)
    return output.strip().rpartition("\n")[2]


def make_data(folder: Path, side: int, count: int) -> Path:
    """Make `count` images as JPEG files, as an array of their pixels, and prepared; return the folder."""
    if (folder / "prepared" / "meta.json").exists():
        return folder
    generator = np.random.default_rng(0)
    labels = np.arange(count) * CLASSES // count
    images = np.empty((count, side, side, 3), dtype=np.uint8)
    for number, label in enumerate(labels):
        path = folder / "images" / f"class-{label}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        _draw(generator, side).save(path, quality=QUALITY)
        images[number] = np.asarray(Image.open(path))
    np.save(folder / "images.npy", images)
    np.save(folder / "labels.npy", labels)
    dataset = synthetic.dataset(side, 3, count, count) | {"reader": "bench.feed.read", "name": f"feed_{side}"}
    prepare(dataset, folder, folder / "prepared")
    return folder


def read(raw: Path, options: dict[str, int]) -> Splits:
    """Read the array of images that `make_data` has written (a reader)."""
    source = ArraySource((np.load(raw / "images.npy"),), (np.load(raw / "labels.npy"),))
    return Splits(source, source, names=tuple(map(str, range(CLASSES))))


def _draw(generator: np.random.Generator, side: int) -> Image.Image:
    """Draw soft shapes and a little noise, whose JPEG file is about as large as that of a photograph."""
    coarse = Image.fromarray(generator.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    shapes = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), dtype=np.float32)
    noisy = shapes + generator.normal(0, 8, shapes.shape)
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


if __name__ == "__main__":
    sys.exit(main())
