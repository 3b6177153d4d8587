"""Choose among pipelines that nobody runs: on so many devices, in so many stages and copies of them.

The model is traced once. Of each number of devices and stages the quickest number of micro-batches that fits
is kept, for to look at what stages hold takes longest.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from src.config import Config, ConfigError
from src.partition.plan import Plan
from src.predict.asked import HYBRID, Asked
from src.predict.constants import Constants
from src.predict.dry_runs import SAMPLES
from src.predict.layout import layout
from src.predict.looked import LookedPipeline, Stages
from src.predict.looks import context_of, nearby, reason_of
from src.predict.stage_looks import CutModel
from src.predict.step import Parts
from src.predict.traced.stages import Cut, TracedStages

# A pipeline's seconds by part, its number of micro-batches, its run, and how it is cut.
Timed = tuple[Parts, int, Config, Plan]
# What is computed again where a pipeline wouldn't fit.
AGAIN = "full"
# So many numbers of micro-batches are tried for what fits, the quickest first, before the largest.
TRIED = 2


def looked_at(
    question: Asked, config: Config, wanted: Sequence[Stages], room: float
) -> Iterator[tuple[Stages, LookedPipeline | str]]:
    """Yield for each pipeline that is asked for the quickest one that fits, or else the one that holds least.

    Args:
        question: what is asked.
        config: of a run of two stages.
        wanted: the pipelines.
        room: bytes that a device has for a step; with none what holds least is looked for.
    """
    with contextlib.ExitStack() as contexts, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # Whether its operations go with samples is seen under other strategies.
            ends = SAMPLES[0], SAMPLES[-1]
            given = {n: _config(config, Stages(2, 2, 2 * n, (2,)), 2) for n in ends}
            made = {n: contexts.enter_context(context_of(each))[0] for n, each in given.items()}
            model = CutModel(made)
        except Exception as error:
            reason = reason_of(error)
            yield from ((each, reason) for each in wanted)
            return
        for each in wanted:
            try:
                yield each, _choice(question, config, model, each, room)
            except Exception as error:
                yield each, reason_of(error)


def _choice(question: Asked, config: Config, model: CutModel, wanted: Stages, room: float) -> LookedPipeline:
    """Return the quickest number of micro-batches that fits, or the one that holds least.

    Where none fits, stages compute again what backward passes need.
    """
    found = _quickest(question, config, model, wanted, room)
    if sum(found.held.values()) <= room:
        return found
    with contextlib.suppress(ConfigError):
        strategy = {**config.strategy, "recompute": AGAIN}
        again = _quickest(question, replace(config, strategy=strategy), model, wanted, room)
        return min(found, again, key=lambda each: sum(each.held.values()))
    return found


def _quickest(
    question: Asked, config: Config, model: CutModel, wanted: Stages, room: float
) -> LookedPipeline:
    """Return the quickest number of micro-batches that fits with what is computed again, or the least."""
    timed: list[Timed] = []
    for count in wanted.microbatches:
        own = _config(config, wanted, count)
        if own.microbatch == 1 and model.batchnorm:
            continue
        row = question.row(own, HYBRID, wanted.devices)
        plan = model.plan(own, nearby(row))
        cut = Cut(own, model.kernels, model.profile(own.microbatch), plan)
        timed.append((TracedStages(row, layout(row), cut).parts(Constants()), count, own, plan))
    if not timed:
        raise ConfigError(
            f"batch={wanted.batch}: leaves one sample a micro-batch, and BatchNorm needs several"
        )
    timed.sort(key=lambda each: each[0].seconds)
    # What has most micro-batches holds least.
    least = max(timed, key=lambda each: each[1])
    found: dict[int, LookedPipeline] = {}

    def fitting(tried: Iterable[Timed]) -> LookedPipeline | None:
        for parts, count, own, plan in tried:
            if count not in found:
                held = model.most(plan, own, _fullest([stage.memory_bytes for stage in plan.stages]))
                # Each device holds the whole model against the cut one.
                again = own.strategy["recompute"]
                found[count] = LookedPipeline(count, parts, held, 2.0 * model.weights, again)
            if sum(found[count].held.values()) <= room:
                return found[count]
        return None

    # Where what holds least doesn't fit nothing does; where it does a quicker one may.
    quick = fitting(timed[:TRIED]) or (fitting([least]) and fitting(timed))
    return quick or min(found.values(), key=lambda each: sum(each.held.values()))


def _fullest(sizes: Sequence[float]) -> list[int]:
    """Return the numbers of stages of which one holds most.

    That is a plan's largest, the second, which receives from both sides and has most under way of those that
    do, or the last, with the loss.
    """
    return sorted({max(range(len(sizes)), key=sizes.__getitem__), 1, len(sizes) - 1})


def _config(config: Config, wanted: Stages, microbatches: int) -> Config:
    """Return the run of a pipeline, whose copies have equal parts of the batch."""
    data, left = divmod(wanted.devices, wanted.pipeline)
    if left or wanted.batch % (data * microbatches):
        raise ConfigError(f"batch={wanted.batch}: can't be divided by {data} copies and {microbatches} parts")
    strategy = {
        **config.strategy,
        "data": data,
        "pipeline": wanted.pipeline,
    }
    return replace(
        config, strategy=strategy, workers=wanted.devices, batch=wanted.batch, microbatches=microbatches
    )
