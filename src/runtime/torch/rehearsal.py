"""Rehearse a rank's steps: train as one of many ranks whose others aren't there, and note what it does.

The strategy's own code runs, in Lightning's loop, on as many samples and with parts of the same sizes as
among the ranks (`src/compat/alike_ranks.py`). Kept are the seconds that the rank computes between its
exchanges, and what these are: with the seconds of exchanges they make a step (`src/predict/program.py`).
Several processes may rehearse side by side, as ranks of one host share its memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pkgutil import resolve_name
from statistics import median
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from src.compat.alike_ranks import alike_ranks
from src.config import ConfigError
from src.measure.kernels import UPDATE, WAIT
from src.measure.recorder import Recorder
from src.run import files
from src.run.status import Status
from src.run.tables import write_text
from src.runtime.common.context import RankContext
from src.runtime.common.rehearsed import LEAST, Rehearsed, is_enough, rehearsed, too_few
from src.runtime.torch import process_group, setup


@dataclass
class Step:
    """A step as it was seen.

    Attributes:
        events: (kind, bytes, ranks, number of the call, seconds that were computed before it) of each
            exchange and each wait for one, and of the beginning of the update.
        last: seconds that were computed after the last one.
    """

    events: list[tuple[str, int, int, int, float]] = field(default_factory=list)
    last: float = 0.0

    @property
    def signature(self) -> tuple[tuple[str, int, int, int], ...]:
        """Return what tells a step from one that exchanges something else."""
        first = next((number for kind, _, _, number, _ in self.events if kind != UPDATE), 0)
        return tuple(
            (kind, size, ranks, number - first if kind != UPDATE else 0)
            for kind, size, ranks, number, _ in self.events
        )

    @property
    def computed(self) -> list[float]:
        """Return the seconds that were computed before each event, and after the last one."""
        return [*(event[-1] for event in self.events), self.last]


class StepObserver:
    """An observer of a rank's steps, from the end of one update to the end of the next.

    Attributes:
        steps: those that were seen.
        warmup: how many come before these.
        trained_bytes: of the parameters that the optimizer updates.
    """

    def __init__(self, device: torch.device, warmup: int) -> None:
        """Observe steps on a device, from after `warmup` of them, two at least."""
        self.steps: list[Step] = []
        self.warmup = max(2, warmup)
        self.trained_bytes = 0
        # A first step has no beginning, and buckets are made anew after it.
        self._device, self._left, self._calls = device, self.warmup, 0
        self._step = Step()
        self._last = self._began = self._moment()
        # Between the end of a step and the next forward pass, ranks agree on whether to go on.
        self._between = False

    def begin(self) -> None:
        """Note that a call begins."""
        self._now = self._moment()

    def exchanged(self, kind: str, size: int, ranks: int) -> int:
        """Note what a call exchanged; the time that it took isn't the rank's."""
        if self._between:
            self._last += self._moment() - self._now
            return 0
        self._calls += 1
        self._step.events.append((kind, size, ranks, self._calls, self._now - self._last))
        self._last = self._moment()
        return self._calls

    def waited(self, number: int) -> None:
        """Note that the rank begins to wait for a call."""
        if number and not self._between:
            self._add((WAIT, 0, 0, number))

    def forward_begins(self, *_: Any) -> None:
        """Note that a module's forward pass begins."""
        self._between = False

    @contextlib.contextmanager
    def off_clock(self, block: AbstractContextManager[None]) -> Iterator[None]:
        """Run a block that is off the rank's clock, as an evaluation is, and forget it."""
        step, last, began = self._step, self._last, self._moment()
        self._step = Step()
        with block:
            yield
        self._step, self._last = step, last + self._moment() - began

    def step_begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Have the update noted: at once, or where the gradients are computed within it, after that."""
        if not self.trained_bytes:
            groups = optimizer.param_groups
            self.trained_bytes = sum(each.nbytes for group in groups for each in group["params"])
        closure = kwargs.get("closure") or next(iter(args[1:]), None)
        if closure is None:
            self._add((UPDATE, 0, 0, 0))
            return None

        def noted() -> Any:
            result = closure()
            self._add((UPDATE, 0, 0, 0))
            return result

        return args[:1], {**kwargs, "closure": noted}

    def step_ends(self, *_: Any) -> None:
        """End the step; raise `Rehearsed` once enough were seen."""
        now = self._moment()
        self._step.last = now - self._last
        if self._left > 0:
            self._left -= 1
            self._began = now
        else:
            self.steps.append(self._step)
        if is_enough(len(self.steps), now - self._began):
            raise Rehearsed
        self._step, self._last, self._between = Step(), self._moment(), True

    def _add(self, event: tuple[str, int, int, int]) -> None:
        now = self._moment()
        self._step.events.append((*event, now - self._last))
        self._last = self._moment()

    def _moment(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def train(context: RankContext, recorder: Recorder) -> None:
    """Rehearse in the place of a training.

    Raises:
        ConfigError: for a strategy whose steps aren't seen so.
    """
    config, entry = rehearsed(context.config)
    device = setup.root_device(context)
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(config.workers), "LOCAL_RANK": "0"}
    own = dataclasses.replace(context, config=config, rank=0, world_size=config.workers)
    observer = StepObserver(device, config.warmup_steps)
    together(context)
    alone = contextlib.nullcontext() if config.workers == 1 else alike_ranks(config.workers, observer)
    off_clock = recorder.off_clock
    # Evaluations are no part of a step.
    recorder.off_clock = lambda: observer.off_clock(off_clock())  # type: ignore[method-assign]
    with alone, _following(observer), contextlib.suppress(Rehearsed):
        resolve_name(entry)(own, recorder)
    if len(observer.steps) < LEAST:
        raise ConfigError(too_few(config.epochs, recorder.steps, observer.warmup + LEAST))
    found = {**summary(observer.steps), "trained_bytes": observer.trained_bytes}
    write_text(recorder.folder / files.REHEARSAL, json.dumps(found))
    if not recorder.finished:
        recorder.finish(Status.OK)


def summary(steps: list[Step]) -> dict[str, Any]:
    """Return the median seconds of what most steps have in common, and each step's seconds of computing."""
    usual, _ = Counter(step.signature for step in steps).most_common(1)[0]
    alike = [step for step in steps if step.signature == usual]
    seconds = [median(each) for each in zip(*(step.computed for step in alike), strict=True)]
    return {
        "events": [
            {"kind": kind, "bytes": size, "ranks": ranks, "call": call, "seconds": taken}
            for (kind, size, ranks, call), taken in zip(usual, seconds[:-1], strict=True)
        ],
        "last_seconds": seconds[-1],
        "computed": [sum(step.computed) for step in alike],
    }


def together(context: RankContext) -> None:
    """Wait until all processes that rehearse side by side have come as far."""
    if context.world_size > 1:
        process_group.join(context, "gloo")
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


@contextlib.contextmanager
def _following(observer: StepObserver) -> Iterator[None]:
    """Have an observer told of every optimizer's update, and of forward passes, within the block."""
    hooks = [
        register_module_forward_pre_hook(observer.forward_begins),
        register_optimizer_step_pre_hook(observer.step_begins),
        register_optimizer_step_post_hook(observer.step_ends),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
