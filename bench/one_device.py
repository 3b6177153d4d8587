"""Hold predictions of steps on one described device, from a model's operations, against published rates.

python -m bench.one_device FOLDER

FOLDER has TensorFlow's benchmarks of 2017 (`bench/published_tables.py`); NVIDIA's of ResNet-50 are below.
Models are torchvision's, which are those of the tables or nearly so.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torchvision
from torch import nn

from src.compat.torch import TensorsWithoutData
from src.measure.kernels import Trace
from src.predict import sheets
from src.predict.constants import Constants
from src.predict.sheets import Device
from src.predict.traced import costs, programs
from src.runtime.torch import dry_run
from src.runtime.torch.kernel_counter import KernelCounter

MODELS = {
    "InceptionV3": "inception_v3",
    "ResNet-50": "resnet50",
    "ResNet-152": "resnet152",
    "AlexNet": "alexnet",
    "VGG16": "vgg16",
}
IMAGE_SIZES = {"InceptionV3": 299}
# NVIDIA DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5/README.md, training performance on
# one GPU: containers 19.10 (images by channel first) and 21.03 (mixed precision with channels last).
NVIDIA = (
    ("v100_16gb", "fp32", 128, False, 380.44),
    ("v100_16gb", "fp16", 256, False, 893.09),
    ("v100_16gb", "fp16", 256, True, 1200.0),
    ("a100_80gb", "tf32", 256, False, 938.0),
    ("a100_80gb", "fp16", 256, True, 2470.0),
)


@dataclass(frozen=True)
class Rate:
    """A published rate of one device: samples/s of a model with so many samples a step."""

    device: str
    model: str
    precision: str
    samples: int
    channels_last: bool
    rate: float


def rates(folder: Path) -> Iterator[Rate]:
    """Yield the published rates."""
    with (folder / "tf_cnn_benchmarks_2017.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["gpus"] == "1" and row["data"] == "synthetic":
                device = "p100" if "P100" in row["platform"] else "k80"
                samples, rate = int(row["batch_per_gpu"]), float(row["images_per_s"])
                yield Rate(device, row["model"], "fp32", samples, False, rate)
    for device, precision, samples, channels_last, rate in NVIDIA:
        yield Rate(device, "ResNet-50", precision, samples, channels_last, rate)


def trace_of(rate: Rate) -> Trace:
    """Return the trace of a step of a model, with an update by SGD with momentum."""
    fake = TensorsWithoutData(allow_non_fake_inputs=True)
    counter = KernelCounter(fake, waits=True)
    size = IMAGE_SIZES.get(rate.model, 224)
    layout = torch.channels_last if rate.channels_last else torch.contiguous_format
    options = {"init_weights": False} if rate.model == "InceptionV3" else {}
    model: nn.Module = getattr(torchvision.models, MODELS[rate.model])(weights=None, **options)
    model = model.to(memory_format=layout)
    dry_run.forget_data(model, fake)
    with fake, counter:
        images = torch.empty(rate.samples, 3, size, size).to(memory_format=layout)
        labels = torch.zeros(rate.samples, dtype=torch.long)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
        for _ in range(2):
            counter.begin()
            with torch.autocast("cpu", torch.bfloat16, enabled=rate.precision == "fp16", cache_enabled=False):
                returned = model(images)
                outputs = (returned,) if torch.is_tensor(returned) else tuple(returned)
                losses = [nn.functional.cross_entropy(each.float(), labels) for each in outputs]
            optimizer.zero_grad()
            torch.stack(losses).sum().backward()
            counter.update()
            optimizer.step()
    return counter.trace()


def device_of(rate: Rate) -> Device:
    """Return the data sheet of a rate's device, whose units for two bytes are called bf16."""
    sheet = sheets.device(rate.device)
    peak = {**sheet.peak, "bf16": sheet.peak.get("fp16", sheet.peak["fp32"])}
    return sheet.model_copy(update={"peak": peak})


def seconds_of(rate: Rate, trace: Trace, constants: Constants) -> float:
    """Return the predicted seconds of a step."""
    taken = costs.seconds(trace.kernels, device_of(rate), constants)
    program = programs.program(trace, taken, constants.host_seconds)
    return sum(program.computed) + constants.loop_seconds


def main() -> int:
    """Print a table, of which each row is of all numbers of samples together."""
    constants = Constants()
    traces: dict[tuple[object, ...], Trace] = {}
    errors: dict[tuple[str, ...], list[float]] = {}
    for rate in rates(Path(sys.argv[1])):
        layout = "channels last" if rate.channels_last else "channels first"
        key = rate.model, rate.precision == "fp16", rate.samples, layout
        if key not in traces:
            traces[key] = trace_of(rate)
        error = math.log(seconds_of(rate, traces[key], constants) * rate.rate / rate.samples)
        errors.setdefault((rate.device, rate.model, rate.precision, layout), []).append(error)
    print("| device | model | precision | images | predicted / published |")
    print("| --- | --- | --- | --- | ---: |")
    for names, own in errors.items():
        print(f"| {' | '.join(names)} | {math.exp(np.mean(own)):.2f} |")
    sizes = np.sort([abs(np.mean(own)) for own in errors.values()])
    print(f"mean {np.expm1(sizes).mean():.1%}, median {np.expm1(np.median(sizes)):.1%}")
    print("logarithms:", ", ".join(f"{each:.3f}" for each in sizes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
