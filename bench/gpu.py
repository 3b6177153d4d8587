"""Rehearse trainings on a GPU: `python -m bench.gpu`, where torch is all that is installed.

Neither Hydra nor MLflow nor a download is needed: configurations are composed from conf/ directly, and images
are random. Each step prints a line with its verdict and its bound; the next one runs whatever that is. The
exit status is 1 after a failed step, and 2 where there is no GPU; `--device cpu` runs the same steps there.
Results are kept in bench/out/gpu/.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import synthetic
from bench.plain_config import compose
from bench.power_meter import PowerMeter, integrate
from src.data import available
from src.launch.training import train
from src.machine.devices import visible_gpus
from src.measure.arithmetic import PARITY_STEPS
from src.run import files, leases
from src.run.tables import read_table

OUT = Path("bench/out/gpu")
# The bound of losses in fp32, relative to those above 1; tensor cores' TF32 is switched off for it.
PARITY_BOUND = 1e-4
# Between the energy of the trace and the power that NVML gives, integrated; the driver averages that itself.
ENERGY_BOUND = 0.05


@dataclass(frozen=True)
class Sizes:
    """The sizes of the run whose speed and trace are taken.

    Attributes:
        model: its name in conf/model/.
        side: of the square images, in pixels.
        channels: of the images.
        batch: samples of a step.
        steps: number of steps, of which five are warm-up.
    """

    model: str
    side: int
    channels: int
    batch: int
    steps: int


SIZES = {"gpu": Sizes("resnet50", 224, 3, 256, 96), "cpu": Sizes("cnn", 28, 1, 16, 64)}


@dataclass(frozen=True)
class Run:
    """A finished run: its metrics, the first losses, and the rows of its trace."""

    metrics: Mapping[str, Any]
    losses: list[float]
    trace: list[dict[str, Any]]


class Failed(Exception):
    """The failure of a step; its text is the verdict's."""


class Rehearsal:
    """The steps, on one kind of device."""

    def __init__(self, device: str, sizes: Sizes) -> None:
        """Rehearse on a `device`, `gpu` or `cpu`; speed and trace are taken of a run of these sizes."""
        self._device = device
        self._sizes = sizes
        self._small = synthetic.dataset(28, 1, 1024, 64)
        self._runs: dict[str, Run] = {}

    def steps(self) -> dict[str, Callable[[], str]]:
        """Return the steps by name, in their order; each returns its verdict or raises `Failed`."""
        return {
            "single": self.single,
            "parity with the CPU": lambda: self._parity("single", self._reference()),
            "ddp of one rank": self.ddp,
            "pipeline on a shared device": self.pipeline,
            "fsdp on a shared device": lambda: self._shared("fsdp"),
            "tensor_parallel on a shared device": lambda: self._shared("tensor_parallel", model="mlp"),
            "hybrid on a shared device": lambda: self._shared("hybrid", workers=4, options={"shard": 2}),
            "speed as written": lambda: self._speed(compiled=False),
            "trace": self.trace,
            "speed compiled": lambda: self._speed(compiled=True),
        }

    def single(self) -> str:
        """Train a small model on the device."""
        run = self._run("single", "single")
        return f"{len(run.losses)} losses from {run.losses[0]:.4f} to {run.losses[-1]:.4f}, status ok"

    def ddp(self) -> str:
        """Train under `ddp` with one rank, and hold it against `single`."""
        self._run("ddp", "ddp", workers=1)
        return self._parity("ddp", self._runs["single"])

    def pipeline(self) -> str:
        """Train two stages on one device, and hold them against `single` with as many micro-batches."""
        whole = self._run("single of four micro-batches", "single", microbatches=4)
        self._run(
            "pipeline",
            "pipeline",
            workers=2,
            microbatches=4,
            hardware={"share_devices": True},
        )
        return self._parity("pipeline", whole)

    def _shared(
        self, strategy: str, *, model: str = "cnn", workers: int = 2, options: Mapping[str, Any] | None = None
    ) -> str:
        """Train ranks of a strategy on one device, and hold them against `single`."""
        single = f"single of {model}"
        if single not in self._runs:
            self._run(single, "single", model=model)
        self._run(
            strategy,
            strategy,
            model=model,
            workers=workers,
            strategy_options=options or {},
            hardware={"share_devices": True},
        )
        return self._parity(strategy, self._runs[single])

    def trace(self) -> str:
        """Check the hardware's trace of the run whose speed was taken."""
        run = self._runs["speed"]
        if self._device == "cpu":
            return f"{len(run.trace)} samples; power and energy are not checked on a CPU"
        used = max(row["utilization"] or 0.0 for row in run.trace)
        held = max(row["memory_bytes"] or 0 for row in run.trace)
        if used < 0.5 or held < run.metrics["memory_peak_bytes"]:
            raise Failed(f"utilisation {used:.0%}, {held / 2**30:.1f} GiB in use: less than the run needed")
        rows = [row for row in run.trace if row["power_watts"] is not None]
        energy = integrate([(row["time"], row["power_watts"]) for row in rows], means=True)
        metered = integrate(self._meter.between(rows[0]["time"], rows[-1]["time"]), means=False)
        ratio = energy / metered
        text = (
            f"utilisation up to {used:.0%}, {held / 2**30:.1f} GiB, {energy:,.0f} J by the trace are "
            f"{ratio:.3f} of {metered:,.0f} J by integrated power; bound {ENERGY_BOUND:.0%}"
        )
        if not abs(ratio - 1) <= ENERGY_BOUND:
            raise Failed(text)
        return text

    def _speed(self, *, compiled: bool) -> str:
        """Measure images/s and model FLOPs utilisation in bf16, channels_last."""
        sizes, name = self._sizes, "speed compiled" if compiled else "speed"
        images = synthetic.dataset(sizes.side, sizes.channels, sizes.batch * sizes.steps // 4, sizes.batch)
        with PowerMeter() as meter:
            run = self._run(
                name,
                "single",
                model=sizes.model,
                dataset=images,
                batch=sizes.batch,
                epochs=4,
                precision="bf16",
                strategy_options={"compile": compiled},
                hardware={"sample_seconds": 0.1},
            )
        if not compiled:
            self._meter = meter
        rate, used = run.metrics["samples_per_second"], run.metrics["model_flops_utilization"]
        if rate is None or used is None:
            raise Failed("no throughput was measured")
        text = f"{sizes.model} {rate:,.0f} images/s, MFU {used:.1%}"
        text += f", started in {run.metrics['startup_seconds']:.0f} s"
        written = self._runs.get("speed")
        if compiled and written is not None:
            text += f"; {rate / written.metrics['samples_per_second']:.2f} of the speed as written"
        return f"{text}; no bound"

    def _reference(self) -> Run:
        return self._run("single on the CPU", "single", hardware={"device": "cpu", "share_devices": True})

    def _parity(self, name: str, reference: Run) -> str:
        """Compare a run's first losses with those of a reference."""
        pairs = list(zip(self._runs[name].losses, reference.losses, strict=True))[:PARITY_STEPS]
        gap = max(abs(ours - theirs) / max(1.0, abs(theirs)) for ours, theirs in pairs)
        text = f"the first {len(pairs)} losses differ by {gap:.1e} at most; bound {PARITY_BOUND:.0e}"
        if not gap <= PARITY_BOUND:
            raise Failed(text)
        return text

    def _run(self, name: str, strategy: str, **keys: Any) -> Run:
        """Train one configuration, by default of a small model, and keep the run under its name."""
        settings = {"model": "cnn", "dataset": self._small, "batch": 64, "epochs": 1, **keys}
        hardware = {"device": self._device, "start_method": "spawn", **settings.pop("hardware", {})}
        model = settings.pop("model")
        config = compose(
            OUT / name.replace(" ", "-"),
            settings.pop("dataset"),
            {"strategy": strategy, "model": model, "hardware": "local"},
            hardware=hardware,
            strategy=settings.pop("strategy_options", {}),
            # Ranks that share a layer draw what is dropped by themselves.
            model={"dropout": 0.0} if model == "mlp" else {},
            tracking={"backend": "none"},
            overwrite=True,
            max_minutes=2,
            **settings,
        )
        available.ensure(config.dataset)
        lease = leases.take([config])
        try:
            status = train(config, lease.of(leases.request_of(config)), started=time.time(), sweep=False)
        finally:
            lease.close()
        if status != "ok":
            raise Failed(f"{name}: status {status}; see {config.out}*/logs")
        out = Path(config.out)
        losses = [row["loss"] for row in read_table(out / files.STEPS) if row["rank"] == 0]
        if not all(math.isfinite(loss) for loss in losses):
            raise Failed(f"{name}: a loss isn't finite")
        metrics = json.loads((out / files.METRICS).read_text())
        self._runs[name] = Run(metrics, losses, read_table(out / files.TRACE))
        return self._runs[name]


def main() -> int:
    """Run all steps, print their verdicts, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    device = parser.parse_args().device
    if device == "gpu" and not visible_gpus():
        print("no NVIDIA GPU is found here; --device cpu runs the same steps on the CPU", file=sys.stderr)
        return 2
    OUT.mkdir(parents=True, exist_ok=True)
    # Random images are for nobody else.
    os.environ["SCALEGUIDE_CACHE"] = str((OUT / "cache").absolute())
    # Read by cuBLAS and cuDNN; bf16 isn't touched by it.
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    verdicts = []
    for name, step in Rehearsal(device, SIZES[device]).steps().items():
        begun = time.time()
        try:
            passed, text = True, step()
        except Exception as error:
            passed, text = (
                False,
                f"{type(error).__name__}: {error}" if not isinstance(error, Failed) else str(error),
            )
        verdicts.append({"step": name, "passed": passed, "text": text, "seconds": time.time() - begun})
        print(f"{'passed' if passed else 'FAILED'}  {name}: {text}", flush=True)
    (OUT / "results.json").write_text(json.dumps(verdicts, indent=1))
    return 0 if all(verdict["passed"] for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
