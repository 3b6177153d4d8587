"""Hold predictions from a data sheet against steps and memory of one GPU: `python -m bench.gpu_steps`.

    python -m bench.gpu_steps measure STEPS.json [SECONDS]
    python -m bench.gpu_steps table STEPS.json

The first command trains each of `CELLS` for a few steps under `single`, as a rank of a run does, but one
after the other in one process, and ends after so many seconds; it goes on where a file has ended. The second
one predicts each of them, without a GPU, and prints a row for each.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from pytorch_lightning.strategies import SingleDeviceStrategy

from src.config import Config, command_line, compose
from src.data import available, prepared
from src.measure.recorder import Recorder
from src.predict import asked, described, held, sheets
from src.predict.calibrate import Fit
from src.predict.memory import GIB
from src.predict.predictions import LEVEL
from src.predict.traced import intervals
from src.run import files
from src.run.tables import read_table
from src.runtime.common.context import RankContext
from src.runtime.torch import setup
from src.runtime.torch.lightning.fit import fit

WARM_UP, STEPS = 8, 20
SGD, ADAMW = "optimizer.name=sgd optimizer.lr=0.001", "optimizer.name=adamw optimizer.lr=0.0001"
IMAGES = "dataset=synthetic dataset.shape=[224,224,3]"
SMALL = "dataset=synthetic dataset.shape=[32,32,3] dataset.classes=10"
BYTES = "dataset=gcide dataset.source=generated dataset.fraction=0.1"
# Models with their data, as words of `src.train`; samples of a step; precisions.
GROUPS: tuple[tuple[str, tuple[int, ...], str], ...] = (
    (f"model=resnet50 {IMAGES} {SGD}", (64, 256), "fp32 bf16"),
    (f"model=gpt2_124m {BYTES} {ADAMW}", (16, 64, 256), "fp32 bf16"),
    (
        f"model=cnn dataset=synthetic dataset.shape=[28,28,1] dataset.classes=10 {SGD}",
        (64, 1024),
        "fp32 bf16",
    ),
    (f"model=vit_b_16 {IMAGES} {ADAMW}", (32, 128), "fp32 bf16"),
    (f"model=resnet18 {SMALL} {SGD}", (128, 1024), "fp32 bf16"),
    (f"model=gpt {BYTES} {ADAMW}", (32, 512), "fp32 bf16"),
    (f"model=resnet101 {IMAGES} {SGD}", (128,), "fp32 bf16"),
    (f"model=mobilenet_v2 {IMAGES} {SGD}", (32, 256), "fp32 bf16"),
    (f"model=custom model.path=torchvision.models.vgg16 {IMAGES} {SGD}", (64,), "fp32 bf16"),
    (f"model=custom model.path=torchvision.models.convnext_tiny {IMAGES} {ADAMW}", (64,), "fp32 bf16"),
    (f"model=custom model.path=torchvision.models.swin_t {IMAGES} {ADAMW}", (64,), "fp32 bf16"),
    (f"model=custom model.path=torchvision.models.densenet121 {IMAGES} {SGD}", (64,), "fp32 bf16"),
    (f"model=custom model.path=torchvision.models.efficientnet_b0 {IMAGES} {SGD}", (128,), "fp32 bf16"),
    (f"model=custom model.path=torchvision.models.alexnet {IMAGES} {SGD}", (512,), "fp32 bf16"),
)
CELLS = tuple(
    f"{words} batch={batch} precision={precision}"
    for words, batches, precisions in GROUPS
    for precision in precisions.split()
    for batch in batches
)
Row = dict[str, Any]


def measure(path: Path, seconds: float) -> int:
    """Train cells that a file hasn't, for so many seconds, and add a row of each to it."""
    device = "gpu" if torch.cuda.is_available() else "cpu"
    known: list[Row] = json.loads(path.read_text()) if path.exists() else []
    done, ends = {row["words"] for row in known}, time.monotonic() + seconds
    for words in CELLS:
        if words in done:
            continue
        if time.monotonic() > ends:
            break
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            row = _row(words, device, Path(folder))
        known.append({"words": words, **row, "took": time.monotonic() - began})
        path.write_text(json.dumps(known, indent=1))
        print(json.dumps(known[-1]), flush=True)
    return 0


def _row(words: str, device: str, folder: Path) -> Row:
    """Return what the steps of a cell took and held at most; its status alone where they failed."""
    chosen = [
        *words.split(),
        f"hardware.device={device}",
        "hardware.share_devices=true",
        "tracking.backend=none",
    ]
    batch = next(int(word.removeprefix("batch=")) for word in chosen if word.startswith("batch="))
    limits = [f"dataset.limit={batch * (WARM_UP + STEPS)}", "dataset.test_limit=8"]
    try:
        config = compose.cells(
            command_line.parse([*chosen, *limits, "strategy=single", f"out={folder}/run"])
        )[0]
        if not config.dataset.get("in_memory"):
            available.ensure(config.dataset)
        recorder = _trained(config, folder)
    except Exception as error:
        status = "out_of_memory" if isinstance(error, torch.OutOfMemoryError) else "failed"
        return {"status": status, "error": f"{type(error).__name__}: {error}"[:300]}
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    steps = [row["seconds"] for row in read_table(recorder.folder / files.STEPS) if row["step"] > WARM_UP]
    low, _, high = quantiles(steps, n=4)
    held_most = recorder.facts.get("memory_peak_bytes")
    name = torch.cuda.get_device_name() if device == "gpu" else "cpu"
    found = {"seconds": median(steps), "low": low, "high": high, "peak_bytes": held_most, "device": name}
    return {"status": recorder.facts["status"], **found, "torch": torch.__version__}


def _trained(config: Config, folder: Path) -> Recorder:
    """Train as the only rank of a run, without what a run measures afterwards; return the record."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    recorder = Recorder(config, 0, folder / "ranks/0", started=time.time(), probes=False)
    context = RankContext(config, 0, 1, prepared.load(config.dataset), folder, cores)
    fit(context, recorder, SingleDeviceStrategy(device=setup.root_device(context)))
    return recorder


def table(path: Path) -> int:
    """Predict each row of a file, and print what was predicted beside what was measured."""
    rows = [row for row in json.loads(path.read_text()) if row["status"] == "ok"]
    if unknown := {row["device"] for row in rows if sheets.reported_as([row["device"]]) is None}:
        print(f"{path}: nobody has described {', '.join(unknown)}", file=sys.stderr)
        return 1
    if not rows:
        print(f"{path}: has no cell that was trained", file=sys.stderr)
        return 1
    print("| model | batch | precision | measured | predicted / measured | held | predicted / held |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    errors, inside = [], 0
    for row, predicted in _predicted(rows):
        ratio, bound = predicted["seconds"] / row["seconds"], math.exp(predicted["width"])
        errors.append(abs(ratio - 1))
        inside += 1 / bound <= ratio <= bound
        name, batch, precision = called(row["words"])
        of_memory = f"{row['peak_bytes'] / GIB:.2f} GiB | {predicted['bytes'] / row['peak_bytes']:.3f}"
        print(
            f"| {name} | {batch} | {precision} | {1e3 * row['seconds']:.1f} ms | {ratio:.2f} | {of_memory} |"
        )
    count = len(errors)
    print(f"{count} cells: median {median(errors):.1%}, mean {sum(errors) / count:.1%} off")
    print(f"{inside} of {count} in their intervals of {LEVEL:.0%}")
    return 0


def _predicted(rows: list[Row]) -> Iterator[tuple[Row, Mapping[str, float]]]:
    """Yield rows with what is predicted of them by the data sheet of their device."""
    for row in rows:
        sheet = sheets.reported_as([row["device"]])
        words = [*row["words"].split(), f"hardware={sheet}", "devices=1", "strategy=single"]
        question = asked.read(words)
        with contextlib.redirect_stdout(sys.stderr):
            (found,) = held.of(question)
        if not found.parts:
            print(f"{row['words']}: {found.reason}", file=sys.stderr)
            continue
        parts = Fit().parts(described.step_of(found, question))
        figures = {**vars(parts), "seconds": parts.seconds, "width": intervals.width(parts, LEVEL)}
        yield row, {**figures, "bytes": found.bytes}


def called(words: str) -> tuple[str, str, str]:
    """Return the model's name, samples of a step and the precision of a cell."""
    given = dict(word.split("=", 1) for word in words.split())
    name = given.get("model.path", given["model"]).rpartition(".")[2]
    return name, given["batch"], given["precision"]


def main() -> int:
    """Measure, or print the table; return the exit status, 2 for other words."""
    match sys.argv[1:]:
        case ["measure", path]:
            return measure(Path(path), math.inf)
        case ["measure", path, seconds]:
            return measure(Path(path), float(seconds))
        case ["table", path]:
            return table(Path(path))
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
