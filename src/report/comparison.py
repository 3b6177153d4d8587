"""Decide what may stand in one ratio: the only place that does (docs/metrics.md, "What compares").

A run has a comparison key of *work* (what is computed), *software* (the code and libraries by which) and
*hardware class* (on what). Runs of different work have no ratio; those of different software or hardware
class have one only where a study names its baseline across them, and then in words. A baseline or a reference
is one configuration, never a mean of several; a configuration has several runs where a study repeats it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from src.config.keys import CONFIGURATION, Changes, key_of
from src.config.schema import flatten
from src.report.runs import StudyRun
from src.run.status import Status

WORDS_SHOWN = 3
# How the note begins of a run whose baseline nobody has measured.
NONE = "no "


@dataclass(frozen=True)
class Baseline:
    """The configuration in the denominator of a run's ratios.

    Attributes:
        runs: its runs, in the study's order; none where nothing compares.
        note: in words why there is none, or what else differs where a study has named it; else empty.
    """

    runs: tuple[StudyRun, ...] = ()
    note: str = ""


def work(run: StudyRun) -> dict[str, Any]:
    """Return what a run computes a sample, as far as that decides its speed."""
    # A weak-scaled run's `batch` is each worker's: its work is that of one device with that batch.
    chosen = _chosen(run, Changes.WORK)
    return {**chosen, **{key: run.get(key) for key in ("data_source", "batch", "precision")}}


def software(run: StudyRun) -> dict[str, str]:
    """Return the hash of each code file, and the version of each library, on which a run depends."""
    known = run.environment.get("software") or {}
    return {**(known.get("files") or {}), **(known.get("libraries") or {})}


def hardware(run: StudyRun) -> dict[str, Any]:
    """Return the class of a run's devices: kind, names, cores and speed of each, links, driver."""
    chosen, seen = _group(run, "hardware"), run.environment
    gpu = chosen.get("device") == "gpu"
    names = seen.get("gpus") if gpu else [(seen.get("processors") or {}).get("model")]
    if chosen.get("engine") is not None:
        names = [name for host in seen.get("hosts") or [] for name in host["gpus" if gpu else "processors"]]
    speeds = chosen.get("speeds")
    return {
        "device": "gpu" if gpu else chosen.get("device"),
        "names": ", ".join(sorted({str(name) for name in names or []})),
        "cores_per_device": chosen.get("cores_per_device"),
        "speeds": None if not speeds or all(speed == 1 for speed in speeds) else tuple(speeds),
        # Links of a cluster have no more than a name.
        "links": chosen.get("links") or (None if chosen.get("engine") is None else chosen["name"]),
        "driver": seen.get("driver"),
    }


def same_work(one: StudyRun, other: StudyRun) -> bool:
    """Return whether two runs compute the same, so that their speeds have a ratio."""
    return work(one) == work(other)


def same_work_but_batch(one: StudyRun, other: StudyRun) -> bool:
    """Return whether two runs compute the same of each sample, whatever the number of samples in a batch."""
    return {**work(one), "batch": None} == {**work(other), "batch": None}


def same_software(one: StudyRun, other: StudyRun) -> bool:
    """Return whether all code and libraries that both runs depend on are known and the same."""
    return not _software_differences(one, other)


def same_hardware(one: StudyRun, other: StudyRun) -> bool:
    """Return whether two runs had devices of the same class."""
    return hardware(one) == hardware(other)


def same_devices(one: StudyRun, other: StudyRun) -> bool:
    """Return whether two runs had devices of the same class, whatever links joined them."""
    return {**hardware(one), "links": None} == {**hardware(other), "links": None}


def differences(one: StudyRun, other: StudyRun) -> list[str]:
    """Say in words what of software and hardware class differs between two runs; nothing where none does."""
    here, there = hardware(one), hardware(other)
    if here["links"] != there["links"]:
        here["links"], there["links"] = _links(one, other), _links(other, one)
    words = [f"{key} {here[key]} against {there[key]}" for key in here if here[key] != there[key]]
    changed = _software_differences(one, other)
    shown = ", ".join(changed[:WORDS_SHOWN]) + (", ..." if len(changed) > WORDS_SHOWN else "")
    return [*words, *([f"other software ({shown})"] if changed else [])]


def _links(run: StudyRun, other: StudyRun) -> str:
    """Return a word for a run's links: the hardware's name, where that tells them from another run's."""
    chosen = _group(run, "hardware")
    named = chosen.get("name") != _group(other, "hardware").get("name")
    joined = chosen.get("links") or chosen.get("engine")
    return "none" if joined is None else str(chosen["name"] if named else joined)


def _software_differences(one: StudyRun, other: StudyRun) -> list[str]:
    """Return the names of what both runs depend on and that differs."""
    here, there = software(one), software(other)
    common = [name for name in here if name in there]
    return [name for name in common if here[name] != there[name]] if common else ["unknown"]


def configuration(run: StudyRun, *, seed: bool = True) -> str:
    """Return what tells a configuration from others: its keys and values, without the seed if not `seed`."""
    known = {key: value for key, value in _chosen(run, *CONFIGURATION).items() if seed or key != "seed"}
    # A run that left no configuration is one of its own.
    return json.dumps(known or {"cell": run.cell}, sort_keys=True, default=str)


def _chosen(run: StudyRun, *changes: Changes, group: str = "") -> dict[str, Any]:
    """Return the keys of a run's configuration that change one of these, with their values; of one group.

    Keys that are null are left out: a run of an earlier version may lack them.
    """
    flat = {key: value for key, value in flatten(run.config).items() if value is not None}
    return {key: flat[key] for key in flat if key_of(key).changes in changes and key.startswith(group)}


def is_plain(run: StudyRun) -> bool:
    """Return whether a run is the plain `single` of its framework: one with the options of `reference`."""
    reference = _group(run, "strategy").get("reference")
    return reference is not None and _has_options(run, reference)


def is_single(run: StudyRun) -> bool:
    """Return whether a run's strategy trains on one device, plainly or by a variant of that."""
    return "reference" in _group(run, "strategy")


def _has_options(run: StudyRun, options: Mapping[str, Any]) -> bool:
    strategy = _group(run, "strategy")
    return all(strategy.get(key) == value for key, value in options.items())


def speed_baseline(
    run: StudyRun, runs: Sequence[StudyRun], named: Mapping[str, Any] | None = None
) -> Baseline:
    """Return the baseline of a run's speed-up: one configuration of the same framework and work.

    It is the plain `single` on one device, or the variant of it that the strategy's YAML declares
    (`baseline`). Where a study names one (`named`, values by key), it may be of another software or hardware
    class.
    """
    options = _group(run, "strategy").get("baseline") or {}
    singles = [base for base in runs if base.comparable and _same(base, run, "framework")]
    singles = [base for base in singles if is_single(base) and (base.get("workers") or 1) == 1]
    if named:
        chosen = [base for base in singles if all(base.get(key) == named[key] for key in named)]
        if chosen := [base for base in chosen if same_work(base, run)]:
            bases = _one_configuration(chosen, run)
            return Baseline(bases, "; ".join(differences(run, bases[0])))
    wanted = [
        base for base in singles if _has_options(base, {**_group(base, "strategy")["reference"], **options})
    ]
    what = "single" + "".join(f" {key}={value}" for key, value in options.items())
    return _same_ground(run, wanted, f"{NONE}{what} of the same work")


def own_baseline(run: StudyRun, runs: Sequence[StudyRun]) -> Baseline:
    """Return the same strategy, options and micro-batches at one worker, on which own efficiency stands."""
    alike = [base for base in runs if base.comparable and (base.get("workers") or 1) == 1]
    alike = [base for base in alike if _same_choice(base, run, "strategy")]
    alike = [base for base in alike if _same(base, run, "microbatches")]
    return _same_ground(run, alike, "not measured at one worker")


def _same_ground(run: StudyRun, candidates: Sequence[StudyRun], none: str) -> Baseline:
    """Return one configuration of those that did the same work on the same ground, or say what differs."""
    worked = [base for base in candidates if same_work(base, run)]
    if not worked:
        return Baseline(note=none)
    alike = [base for base in worked if same_software(base, run) and same_hardware(base, run)]
    if not alike:
        return Baseline(note="; ".join(differences(run, worked[0])))
    return Baseline(_one_configuration(alike, run))


def _one_configuration(candidates: Sequence[StudyRun], run: StudyRun) -> tuple[StudyRun, ...]:
    """Return the runs of one of several configurations, those with the run's seed if there are any.

    It is that with the fewest micro-batches, which is the best that one device does, and among these the one
    that differs from the run in the fewest keys.
    """
    mine = flatten(run.config)

    def distance(base: StudyRun) -> tuple[int, int]:
        other = flatten(base.config)
        keys = {key for key in {*mine, *other} if not key.startswith(("strategy.", "seed"))}
        return base.get("microbatches") or 1, sum(mine.get(key) != other.get(key) for key in keys)

    nearest = configuration(min(candidates, key=distance), seed=False)
    chosen = tuple(base for base in candidates if configuration(base, seed=False) == nearest)
    return tuple(base for base in chosen if base.get("seed") == run.get("seed")) or chosen


def parity_reference(run: StudyRun, runs: Sequence[StudyRun], microbatches: int) -> tuple[StudyRun, ...]:
    """Return the runs of the plain `single` whose losses a run's must equal; none where there is none.

    Besides the framework and the work, which for weak scaling is that of the global batch, optimizer, seed,
    software and devices are the run's.

    Args:
        run: the run to be held against them.
        runs: all runs of the study.
        microbatches: how many the reference must have; where the model does nothing that depends on
            them, they change rounding alone, and others will do.
    """
    bases = [base for base in runs if base.metrics and is_plain(base)]
    bases = [base for base in bases if base.global_batch == run.global_batch]
    bases = [base for base in bases if _same(base, run, "framework", "data_source", "precision", "seed")]
    for group in ("dataset", "model", "task", "optimizer"):
        bases = [base for base in bases if _same_choice(base, run, group)]
    bases = [base for base in bases if same_software(base, run)]
    bases = [base for base in bases if hardware(base)["names"] == hardware(run)["names"]]
    exact = [base for base in bases if (base.get("microbatches") or 1) == microbatches]
    others = [
        base
        for base in bases
        if all(known.environment.get("batch_statistics") is False for known in (base, run))
        and not any(
            known.environment.get(seen)
            for known in (base, run)
            for seen in ("computes_over_batch", "moves_buffers")
        )
    ]
    return _one_configuration(exact or others, run) if exact or others else ()


def block(run: StudyRun) -> tuple[Any, int]:
    """Return the seed and repetition of a run, by which it is paired with runs of other configurations."""
    return run.get("seed"), run.get("repetition") or 1


def in_block(run: StudyRun, bases: Sequence[StudyRun], key: str) -> float | None:
    """Return `key` of the baseline's run in the run's own block, else the median over the baseline's runs."""
    known = {block(base): float(base.get(key)) for base in bases if base.get(key) is not None}
    return known.get(block(run), median(known.values()) if known else None)


def same_amount(one: StudyRun, other: StudyRun) -> bool:
    """Return whether two runs finished the same samples, so that their training times have a ratio."""
    finished = one.status == other.status == Status.OK and one.get("epochs") == other.get("epochs")
    return finished and _samples(one) == _samples(other)


def same_asked(one: StudyRun, other: StudyRun) -> bool:
    """Return whether two runs were to train on the same samples as often, whether or not they finished."""
    return one.config.get("epochs") == other.config.get("epochs") and _samples(one) == _samples(other)


def _samples(run: StudyRun) -> dict[str, Any]:
    """Return the keys of a run's dataset that say how many samples there are."""
    return _chosen(run, Changes.TRAINING, group="dataset.")


def _same(one: StudyRun, other: StudyRun, *keys: str) -> bool:
    return all(one.get(key) == other.get(key) for key in keys)


def _same_choice(one: StudyRun, other: StudyRun, group: str) -> bool:
    """Return whether two runs have the same options of a group, as far as these decide what is computed."""
    mine, others = (_chosen(run, *CONFIGURATION, group=f"{group}.") for run in (one, other))
    return mine == others


def _group(run: StudyRun, group: str) -> Mapping[str, Any]:
    """Return a group of a run's configuration, empty where that can't be read."""
    found = run.config.get(group)
    return found if isinstance(found, Mapping) else {}
