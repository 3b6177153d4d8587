"""Predict a model of one's own on described devices: `python -m src.predict hardware=a100_80gb model=cnn`."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from src.config import ConfigError
from src.predict import asked, held, ledger, sheets, what_if
from src.predict.asked import Asked
from src.predict.calibrate import Fit
from src.predict.held import Held
from src.predict.layout import layout
from src.predict.ledger import Entry
from src.predict.memory import GIB
from src.predict.own import command, runs
from src.predict.predictions import LEVEL, Prediction
from src.predict.traced import intervals, programs
from src.predict.traced.stages import Cut, TracedStages
from src.predict.traced.steps import TracedStep


@dataclass(frozen=True)
class Found:
    """A device's memory, and the prediction of its step; `None` where there is none, for `reason`."""

    held: Held
    prediction: Prediction | None
    samples_per_second: float | None
    reason: str

    def as_json(self) -> dict[str, Any]:
        """Return both for programs, in seconds and bytes."""
        figures: dict[str, Any] = {"seconds": None, "low": None, "high": None, "samples_per_second": None}
        if (found := self.prediction) is not None:
            parts = {f"{name}_seconds": value for name, value in vars(found.parts).items()}
            figures = {
                "seconds": found.parts.seconds,
                "low": found.low,
                "high": found.high,
                "samples_per_second": self.samples_per_second,
                **parts,
                "basis": found.basis,
            }
        return {**self.held.as_json(), **figures, "reason": self.reason or None}


def predict(words: Sequence[str], changes: Mapping[str, float], *, as_json: bool) -> int:
    """Predict each strategy on each number of devices, print a table, and return the exit status.

    Args:
        words: those of `src.train`, and those of `asked.OWN`.
        changes: how many times as fast the devices are as they are described (`what_if`).
        as_json: whether what is printed is for programs.

    Raises:
        ConfigError: for a mistake in the words.
    """
    question = asked.read(words)
    room = sheets.device(question.hardware).memory_gib
    # What a model's builder prints is not part of the answer.
    with contextlib.redirect_stdout(sys.stderr):
        every = held.of(question)
    fit = what_if.changed(Fit(), changes)
    found = [_found(each, question, fit) for each in every]
    if as_json:
        print(json.dumps([each.as_json() for each in found], indent=2), flush=True)
    else:
        _table(found, question, room)
    # What is asked of a machine that nobody has can't come.
    past = command.note([] if changes else _entries(question, found))
    if not as_json:
        for strategy in dict.fromkeys(each.held.strategy for each in found if each.prediction):
            kind = f"{strategy} on {question.hardware}"
            print(f"{kind}: {ledger.so_far(past, kind)}")
    return 0 if any(each.prediction is not None for each in found) else 1


def _entries(question: Asked, found: Sequence[Found]) -> list[Entry]:
    """Return predictions as the ledger has them: seconds, and bytes."""
    seconds = [
        Entry(
            command="predict",
            kind=f"{each.held.strategy} on {question.hardware}",
            what=question.called(config),
            signature=runs.signature_on(config, question.hardware, "seconds", question.between(config)),
            unit="seconds",
            basis=made.basis,
            predicted=made.parts.seconds,
            low=made.low,
            high=made.high,
        )
        for each in found
        if (made := each.prediction) is not None and (config := each.held.config) is not None
    ]
    return [*seconds, *held.entries(question, [each.held for each in found])]


def _found(each: Held, question: Asked, fit: Fit) -> Found:
    if not each.parts:
        return Found(each, None, None, each.reason)
    try:
        step = step_of(each, question)
        parts = fit.parts(step)
    except ConfigError as error:
        return Found(each, None, None, str(error))
    off = math.exp(intervals.width(parts, LEVEL))
    prediction = Prediction(
        parts, parts.seconds / off, parts.seconds * off, each.bytes, each.fits, "data sheet", ""
    )
    return Found(each, prediction, step.row.global_batch / prediction.parts.seconds, "")


def step_of(each: Held, question: Asked) -> TracedStep | TracedStages:
    """Return the step of a strategy on a number of devices.

    Raises:
        ConfigError: where it can't be had.
    """
    looked, count, config = each.looked, each.devices, each.config
    assert looked is not None and config is not None
    traces = looked.traces
    if isinstance(traces, str):
        raise ConfigError(traces)
    row = question.row(config, each.strategy, count)
    if isinstance(traces, Cut):
        return TracedStages(row, layout(row), traces)
    trace = programs.among(traces.at(config.microbatch, count), {looked.devices: count})
    if each.strategy == "ddp":
        trace = programs.with_buckets(trace, looked.bucket_bytes, count)
    plan = layout(row)
    if plan.shard > 1:
        trace = programs.gathered_ahead(trace)
    return TracedStep(row, plan, trace)


def _table(found: Sequence[Found], question: Asked, room: float) -> None:
    """Print the rows of a table, and below it what isn't there and why."""
    from rich.console import Console
    from rich.table import Table

    titles = ("strategy", "devices", "samples", "step", f"{100 * LEVEL:.0f} % interval", "samples/s")
    shares = ("compute", "exchange", "bubble", "other")
    joined = f", {question.network} between nodes" if question.network else ""
    table = Table(*titles, *shares, "GiB", "fits", title=f"{question.hardware}{joined}", box=None)
    for each in found:
        if (made := each.prediction) is None:
            continue
        parts, own = made.parts, each.held
        table.add_row(
            own.strategy,
            str(own.devices),
            str(own.samples),
            f"{1e3 * parts.seconds:.4g} ms",
            f"{1e3 * made.low:.4g} to {1e3 * made.high:.4g}",
            f"{each.samples_per_second:.4g}",
            *[f"{100 * getattr(parts, share) / parts.seconds:.0f} %" for share in shares],
            f"{own.bytes / GIB:.2f}",
            "yes" if own.fits else "no",
        )
    if table.row_count:
        Console(width=None if sys.stdout.isatty() else 160).print(table)
        print(f"samples: of one micro-batch on a device; GiB: of {room:g}; all of it rests on data sheets")
    lines = [replace(each.held, reason=each.reason) for each in found]
    for text in held.reasons(lines):
        print(text)
