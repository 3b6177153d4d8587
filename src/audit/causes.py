"""List the causes by which a distributed training differs from one device, and how each is tested.

A cause is tested by changing it alone, in the audited run, in the reference, or in both: if they are equal
then, it is the cause. Which are tried follows from what the reference found of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from src.config import Config

Facts = Mapping[str, Any]
Change = Callable[[Config], Config]


@dataclass(frozen=True)
class Cause:
    """A cause of a difference.

    Attributes:
        name: a word for it, in the JSON.
        title: what it is called in a sentence.
        change: what is changed, in a few words.
        advice: what to do, in one sentence.
        plausible: whether it may be at work in a run, by its configuration and what is known of its model.
        audited: changes the configuration of the audited run.
        reference: changes that of the reference, given that and the audited run's; `None` where it stays as
            it is.
        refines: the name of a more general cause: this one is tested once that is confirmed, and is named
            in its place.
    """

    name: str
    title: str
    change: str
    advice: str
    plausible: Callable[[Config, Facts], bool]
    audited: Change
    reference: Callable[[Config, Config], Config] | None = None
    refines: str | None = None


def with_changes(*changes: str) -> Change:
    """Return what adds changes of the ranks to a configuration of an audited run."""

    def change(config: Config) -> Config:
        assert config.audit is not None
        return replace(config, audit={**config.audit, "changes": [*config.changes, *changes]})

    return change


def _both(*changes: str) -> dict[str, Any]:
    """Return the same changes of the ranks on both sides."""
    change = with_changes(*changes)
    return {"audited": change, "reference": lambda reference, _: change(reference)}


def _strategy(**options: Any) -> Change:
    return lambda config: replace(config, strategy={**config.strategy, **options})


def _unclipped(config: Config) -> Config:
    return replace(config, optimizer={**config.optimizer, "clip_norm": None})


def _alike(config: Config, parts: int) -> Config:
    assert config.audit is not None
    return replace(config, audit={**config.audit, "alike": parts})


def _in_parts(reference: Config, audited: Config) -> Config:
    """Have the reference take each batch in the parts in which the audited run takes it, one by one."""
    return replace(reference, microbatches=_parts(audited))


def _parts(config: Config) -> int:
    return config.data_parallel_degree * config.microbatches


def _divided(config: Config, _: Facts) -> bool:
    return _parts(config) > 1


def _changes_state(_: Config, facts: Facts) -> bool:
    return bool(facts.get("moves_buffers") or facts.get("attributes"))


def _keeps_whole(config: Config) -> bool:
    return not config.cuts


CAUSES = (
    Cause(
        "compression",
        "compressed gradients",
        "strategy.compression=none",
        "leave strategy.compression away, or compare accuracies instead of losses",
        plausible=lambda config, _: config.strategy.get("compression", "none") != "none",
        audited=_strategy(compression="none"),
    ),
    Cause(
        "batchnorm",
        "BatchNorm's local statistics",
        "batchnorm=sync",
        "batchnorm=sync has all ranks compute them together, at the cost of an exchange in each layer",
        plausible=lambda config, facts: (
            bool(facts.get("batch_statistics"))
            and "sync" in config.supports.batchnorm
            and config.batchnorm == "local"
            and config.microbatches == 1
        ),
        audited=lambda config: replace(config, batchnorm="sync"),
    ),
    Cause(
        "batchnorm",
        "BatchNorm's local statistics",
        "BatchNorm frozen on both sides",
        "GroupNorm or LayerNorm depend on no batch; or give each part of a batch more samples",
        plausible=lambda config, facts: bool(facts.get("batch_statistics")) and _divided(config, facts),
        **_both("freeze_batchnorm"),
    ),
    Cause(
        "missing_gradients",
        "parameters that get no gradient in some steps: one device leaves them alone, where others add zeros",
        "a gradient of zeros for those on both sides",
        "have each parameter take part in every step, or use an optimizer without momentum and weight decay",
        plausible=lambda _, facts: bool(facts.get("without_gradient")),
        **_both("zero_gradients"),
    ),
    Cause(
        "dropout",
        "dropout's streams: each part of a batch draws its own mask",
        "dropout off on both sides",
        "nothing is wrong: masks differ as they do between seeds; compare accuracies instead of losses",
        plausible=lambda _, facts: bool(facts.get("draws_random_numbers")),
        **_both("dropout_off"),
    ),
    Cause(
        "own_generators",
        "a generator of random numbers of the model's own, which isn't seeded alike in every process",
        "generators that begin alike in every process",
        "draw from torch's, NumPy's or Python's own generator, which are seeded here",
        plausible=lambda _, facts: bool(facts.get("draws_random_numbers")),
        **_both("same_generators"),
    ),
    Cause(
        "draws",
        "random numbers that the model draws for each part of a batch",
        "the average in the place of what is drawn, on both sides",
        "nothing is wrong if they are noise; draw them per sample by a seed of its own if they must be equal",
        plausible=lambda _, facts: bool(facts.get("draws_random_numbers")),
        **_both("constant_draws"),
    ),
    Cause(
        "clip",
        "gradients that are clipped in parts",
        "optimizer.clip_norm=null on both sides",
        "clip where the whole gradient is known, by a strategy that averages before it clips",
        plausible=lambda config, _: config.optimizer["clip_norm"] is not None,
        audited=_unclipped,
        reference=lambda reference, _: _unclipped(reference),
    ),
    Cause(
        "state",
        "a buffer or Python attribute that `forward` changes",
        "what forward changes is undone after each step, on both sides",
        "compute it outside of forward, or average it over the ranks yourself",
        plausible=lambda config, facts: _keeps_whole(config) and _changes_state(config, facts),
        **_both("undo_state"),
    ),
    Cause(
        "over_batch",
        "an operation over the batch: each part of it sees its own samples alone",
        "one device that takes each batch in the same parts, one by one",
        "gather what the operation needs from all ranks, or give each part as many samples as it needs",
        # Stages that change a state do so once for each micro-batch, which is no operation over the batch.
        plausible=lambda config, facts: (
            _divided(config, facts) and (_keeps_whole(config) or not _changes_state(config, facts))
        ),
        audited=lambda config: config,
        reference=_in_parts,
    ),
    Cause(
        "counts",
        "a loss that is averaged over unequal counts: targets, weights or masks of each part of a batch",
        "parts with the same samples, whose counts are equal",
        'divide by the count of the whole batch, as a task with `divisor = "targets"` does',
        plausible=lambda config, facts: _divided(config, facts) and not facts.get("computes_over_batch"),
        audited=lambda config: _alike(config, _parts(config)),
        reference=lambda reference, audited: _alike(reference, _parts(audited)),
        refines="over_batch",
    ),
    Cause(
        "microbatches",
        "micro-batches: the model is called once for each, and not once for a batch",
        "microbatches=1",
        "microbatches=1, if the strategy can do without",
        plausible=lambda config, _: config.microbatches > 1 and config.supports.microbatches.min == 1,
        audited=lambda config: replace(config, microbatches=1),
    ),
)

# This one is tested where a run is stopped and goes on.
RESUMED = Cause(
    "resume",
    "optimizer state that isn't resumed",
    "optimizer.name=sgd without momentum, which has none",
    "restore it with the weights, as `TrainingModule.restore` does",
    plausible=lambda config, _: config.supports.checkpoints,
    audited=lambda config: config,
)
