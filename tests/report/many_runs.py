"""Write a study of many imagined runs, with every record that a chart is drawn from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

from tests.report.conftest import Study

STRATEGIES = ("single", "ddp", "pipeline", "hogwild", "mpi")
MODELS = ("cnn", "resnet18", "mobilenet_v2", "text_spotter")
EVALUATIONS = 10
# A page has twelve pictures at most.
PICTURED = 30


def write_many(study: Study, count: int, repetitions: int = 1) -> None:
    """Writes `count` runs: strategies by models, batches and repetitions, on 1 to 8 workers."""
    study.written = False
    for number in range(count):
        configuration, repetition = divmod(number, repetitions)
        strategy = STRATEGIES[configuration % len(STRATEGIES)]
        model = MODELS[configuration // len(STRATEGIES) % len(MODELS)]
        workers = 1 if strategy == "single" else 2 ** (1 + configuration // 20 % 3)
        batch = 128 << configuration // 60 % 3
        name = f"{strategy}-{model}-mnist-w{workers}-b{batch}-s0-variant{configuration}"
        declared = {"configuration": name, "repetition": repetition + 1}
        folder = study.run(
            name if not repetition else f"{name}-r{repetition + 1}",
            strategy,
            **{"workers": workers, "batch": batch, "model": {"name": model}, "declared": declared},
            **{"parity": "asynchronous" if strategy == "hogwild" else "synchronous"},
            **_figures(workers, strategy, number),
        )
        _records(folder, workers, strategy, number)
    study.write_params()


def _figures(workers: int, strategy: str, number: int) -> dict[str, Any]:
    rate = 1000.0 * workers**0.8 + number % 37
    known: dict[str, Any] = {
        **{"samples_per_second": rate, "seconds_per_epoch": 60000 / rate, "train_seconds": 120000 / rate},
        **{"accuracy": 0.9 + number % 90 / 1000, "loss": 0.2 + number % 31 / 100, "epochs": EVALUATIONS},
        **{"step_seconds_median": 128 / rate, "memory_peak_bytes": (100 + number % 50) * 2**20},
        **{"energy_joules": 900.0 + number, "utilization_mean": 0.9, "busy_fraction": 0.8},
        **{"input_wait_fraction": 0.02, "cpu_wait_fraction": number % 11 / 100, "steal_fraction": 0.0},
        **{"seconds_to_target": 30.0 + number % 13, "steps_to_target": 400 + number % 17},
        **{"payload_bytes": 10**9, "network_bytes": 10**9 + number, "saved_tensors_bytes": 13 * 2**20},
    }
    if strategy == "hogwild":
        known["staleness_mean"] = 1.5
    if strategy == "pipeline":
        known["bubble_fraction"] = 0.3
    return known


def _records(folder: Path, workers: int, strategy: str, number: int) -> None:
    whole = 10.0 + number % 7
    rows = ["rank,steps,samples,seconds,busy_seconds,exchange_seconds,fetched_bytes,pushed_bytes"]
    # MPI's imagined ranks can't tell computing from exchanging.
    parts = "," if strategy == "mpi" else f"{0.7 * whole},{0.28 * whole}"
    rows += [f"{rank},400,51200,{whole},{parts},," for rank in range(workers)]
    (folder / "workers.csv").write_text("\n".join(rows) + "\n")
    evaluations = ["epoch,seconds,train_loss,train_accuracy,loss,accuracy,validation_seconds"]
    evaluations += [f"{e},30,0.5,0.85,{2 / e},{1 - 0.5 / e},2" for e in range(1, EVALUATIONS + 1)]
    (folder / "epochs.csv").write_text("\n".join(evaluations) + "\n")
    trace = ["time,rank,device,utilization,memory_bytes,power_watts,network_sent_bytes,host"]
    for rank in range(workers):
        trace += [
            f"{t},{rank},cpu{rank},{0.5 + 0.1 * (t % 5)},1,,{t * t * 1000},host{rank}" for t in range(200)
        ]
    (folder / "trace.csv").write_text("\n".join(trace) + "\n")
    if number < PICTURED:
        Image.effect_noise((1600, 800), 90).save(folder / "predictions.png")
    if strategy == "hogwild":
        stale = ["rank,epoch,step,seconds,samples,loss,staleness"]
        stale += [f"0,0,{step},0.1,64,1.0,{step % 4}" for step in range(1, 40)]
        (folder / "steps.csv").write_text("\n".join(stale) + "\n")
    if strategy == "pipeline":
        events = [
            {
                "ph": "X",
                "pid": rank,
                "cat": cat,
                "ts": 1000 * (10 * step + place),
                "dur": 900,
                "args": {"step": step},
            }
            for step in range(6)
            for rank in range(workers)
            for place, cat in enumerate(("forward", "loss", "backward", "send", "wait", "optimizer"))
        ]
        (folder / "timeline.json").write_text(json.dumps({"traceEvents": events}))
