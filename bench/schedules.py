"""Compare each schedule of a pipeline with its simulated ideal: `python -m bench.schedules`.

The ideal step is simulated from the seconds of each stage's passes while all other stages are idle: under
`model_split`, with the same cut and micro-batches. How a backward pass divides into its parts is taken from
the schedule's own run. The machine limits how fast both workers can work at once, by the factor C(2) / 2. A
second table holds measured bubbles against those that are simulated from the same run's own passes, by the
number of micro-batches. What a schedule's passes take in its own run, over those of the same stages alone,
says what dividing backward passes and sharing the machine cost; its step over one that is simulated of its
own passes says what transfers and waiting for them cost. `pipedream`'s ideal step is that of its slowest
stage.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench import runs
from bench.compare import Comparison, ratios, table
from bench.rounds import Rounds, collect
from src.config.schedules import SCHEDULES, refusal
from src.measure import timeline
from src.partition.schedules.actions import Kind
from src.partition.schedules.measured import Passes, Schedule
from src.partition.schedules.simulation import Simulated

WORKERS, STEPS, MICROBATCHES = 2, 56, (4, 8, 16)
WARMUP_STEPS = 5
COMPARED = 8
GOAL = 0.90
# Batch and words of each model.
MODELS = {
    "resnet18": (64, ("dataset=mnist",)),
    "gpt": (16, ("dataset=gcide", "dataset.source=generated", "optimizer.name=adamw")),
}
PASSES = ("forward", "loss", "backward")


@dataclass(frozen=True)
class Run:
    """A run of a pipeline.

    Attributes:
        name: of its schedule.
        microbatches: of a step.
        metrics: with its `cut` and its `timeline`.
    """

    name: str
    microbatches: int
    metrics: Mapping[str, Any]

    @property
    def virtual(self) -> int:
        """Return the stages of a worker."""
        return len(self.metrics["cut"]["stages"]) // WORKERS

    @property
    def schedule(self) -> Schedule:
        """Return the schedule that it had."""
        return Schedule(self.name, WORKERS, self.virtual, self.microbatches)


def main() -> int:
    """Run the rounds and print both tables, which bench/out/ keeps with every figure; return 0."""
    count, repeatable = runs.parse_rounds("schedules", __doc__), Rounds()
    comparisons: list[Comparison] = []
    figures: dict[str, Any] = {}
    bubbles = [
        "| model | schedule | m | samples/s | idle | simulated |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for model in MODELS:
        rates = figures[model] = collect(repeatable.run(count, partial(_round, model)))
        for name in [*_names(COMPARED), "pipedream"]:
            reachable = [a * b for a, b in zip(rates[f"{name}'s ideal"], rates["half of C(2)"], strict=True)]
            comparisons.append(
                Comparison(f"{model}: {name} / (its ideal x C(2)/2)", ratios(rates[name], reachable), GOAL)
            )
            for part, words in (
                ("work", f"work of {name} / alone"),
                ("step", f"step of {name} / its passes'"),
            ):
                if f"{name}'s {part}" in rates:
                    comparisons.append(
                        Comparison(f"{model}: {words}", tuple(rates[f"{name}'s {part}"]), None)
                    )
            if name != "gpipe":
                comparisons.append(
                    Comparison(f"{model}: {name} / gpipe", ratios(rates[name], rates["gpipe"]), None)
                )
        bubbles += [_bubble(model, name, m) for m in MICROBATCHES for name in _names(m)]
    text = "\n\n".join([table(comparisons), repeatable.note(), "\n".join(bubbles)])
    Path("bench/out/schedules.md").write_text(f"{text}\n")
    Path("bench/out/schedules.json").write_text(json.dumps(figures, indent=1))
    print(text)
    return 0


def _names(microbatches: int) -> list[str]:
    """Return the schedules that go with so many micro-batches."""
    return [
        name
        for name, schedule in SCHEDULES.items()
        if refusal(name, WORKERS, schedule.virtual[2], microbatches) is None
    ]


def _train(model: str, strategy: str, microbatches: int, *words: str, steps: int = STEPS) -> dict[str, Any]:
    batch, own = MODELS[model]
    return runs.train(
        f"strategy={strategy}",
        f"model={model}",
        *own,
        f"batch={batch}",
        f"microbatches={microbatches}",
        f"dataset.limit={batch * steps}",
        "dataset.test_limit=64",
        *words,
        out=runs.OUT / f"schedules-{model}-{strategy}",
    )


def _run(model: str, name: str, microbatches: int) -> Run:
    words = (f"strategy.schedule={name}", f"workers={WORKERS}")
    return Run(name, microbatches, _train(model, "pipeline", microbatches, *words))


def _round(model: str, number: int) -> dict[str, float]:
    """Run every schedule once, each followed by its stages one at a time; return rates and ideal rates."""
    figures: dict[str, float] = {}
    names = [*_names(COMPARED), "pipedream"]
    # Another one goes first in each round: what ran before leaves its mark on a shared machine.
    turn = number % len(names)
    # Schedules with the same cut have the same stages.
    measured: dict[tuple[int, ...], tuple[Passes, float]] = {}
    for name in names[turn:] + names[:turn]:
        batch, _ = MODELS[model]
        if name == "pipedream":
            metrics = _train(model, name, COMPARED, f"workers={WORKERS}")
            alone, update = _alone(model, metrics["cut"], measured)
            slowest = max(
                sum(value for (stage, _), value in alone.items() if stage == each) for each in range(WORKERS)
            )
            ideal = COMPARED * slowest + update
        else:
            run = _run(model, name, COMPARED)
            metrics, (own, own_update) = dict(run.metrics), run.schedule.passes(run.metrics["timeline"])
            alone, update = _alone(model, metrics["cut"], measured)
            made = run.schedule.simulated(_in_parts(alone, own), update)
            ideal = float(made.step_seconds)
            again = run.schedule.simulated(own, own_update)
            figures[f"{name}'s work"] = _busy(again) / _busy(made)
            figures[f"{name}'s step"] = batch / metrics["samples_per_second"] / float(again.step_seconds)
        figures |= {name: metrics["samples_per_second"], f"{name}'s ideal": batch / ideal}
    batch, words = MODELS[model]
    rate = runs.run_scaleguide("single", model, batch, STEPS, *words).rate
    figures["half of C(2)"] = runs.summed_rate(model, batch, STEPS, *words) / rate / 2
    shown = ", ".join(f"{name} {rate:.4g}" for name, rate in figures.items())
    print(f"{model} round {number + 1}: {shown}", file=sys.stderr, flush=True)
    return figures


def _busy(step: Simulated) -> float:
    """Return the seconds that all workers compute in a step."""
    return float((1 - step.bubble_fraction) * WORKERS * step.step_seconds)


def _alone(
    model: str, cut: Mapping[str, Any], measured: dict[tuple[int, ...], tuple[Passes, float]]
) -> tuple[Passes, float]:
    """Return the seconds of the stages' whole passes, and of their updates, while all others are idle.

    What is found is kept in `measured`, and taken from there.
    """
    stages = cut["stages"]
    sizes = tuple(stage["stop"] - stage["start"] for stage in stages)
    if sizes in measured:
        return measured[sizes]
    shares = ",".join(map(str, sizes))
    words = (f"workers={len(stages)}", f"strategy.partition=[{shares}]", "hardware.share_devices=true")
    # So many steps are on a timeline, and a rate isn't asked for.
    metrics = _train(model, "model_split", COMPARED, *words, steps=WARMUP_STEPS + timeline.STEPS)
    found: dict[tuple[int, Kind], dict[Any, float]] = defaultdict(lambda: defaultdict(float))
    updates: dict[int, list[float]] = defaultdict(list)
    for event in metrics["timeline"]:
        seconds, where, stage = event["dur"] / 1e6, event["args"], event["pid"]
        kind = Kind.BACKWARD if event["cat"] == "backward" else Kind.FORWARD
        if event["cat"] in PASSES:
            found[stage, kind][where["step"], where["microbatch"]] += seconds
        elif event["cat"] == "optimizer":
            updates[stage].append(seconds)
    virtual = len(stages) // WORKERS
    # A worker updates the weights of all of its stages at once.
    update = virtual * max(median(each) for each in updates.values())
    measured[sizes] = {key: median(each.values()) for key, each in found.items()}, update
    return measured[sizes]


def _in_parts(alone: Passes, own: Passes) -> Passes:
    """Divide backward passes as they were divided in the schedule's own run, if they were."""
    passes = dict(alone)
    for stage in {stage for stage, _ in alone}:
        parts = [own.get((stage, kind), 0.0) for kind in (Kind.INPUT_BACKWARD, Kind.WEIGHT_BACKWARD)]
        if sum(parts):
            for kind, part in zip((Kind.INPUT_BACKWARD, Kind.WEIGHT_BACKWARD), parts, strict=True):
                passes[stage, kind] = alone[stage, Kind.BACKWARD] * part / sum(parts)
    return passes


def _bubble(model: str, name: str, microbatches: int) -> str:
    """Return a line of measured and simulated idle time."""
    run = _run(model, name, microbatches)
    passes = run.schedule.passes(run.metrics["timeline"])
    simulated = float(run.schedule.simulated(*passes).bubble_fraction)
    rate, idle = run.metrics["samples_per_second"], run.metrics["bubble_fraction"]
    return f"| {model} | {name} | {microbatches} | {rate:,.0f} | {idle:.0%} | {simulated:.0%} |"


if __name__ == "__main__":
    sys.exit(main())
