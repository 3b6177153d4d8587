"""List the ways of dividing a training over one's own devices, each with what was measured or predicted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist, median

from src.config import CONF, Config, ConfigError, OwnCodeError, choices
from src.config.mistakes import nearest
from src.config.run_config import MESH
from src.config.schema import SYNCHRONOUS
from src.data import available, prepared
from src.launch.supervise import inspection
from src.measure.arithmetic import bound, disturbed
from src.predict.own import calibration, cells, runs, steps
from src.predict.own.calibration import SPREADS, Fit, Scores
from src.predict.own.constants import PRIORS
from src.predict.own.cost_profile import NotProfiled, Profile
from src.predict.own.steps import OwnStep
from src.predict.step import Parts
from src.recommend import noise
from src.recommend.candidate import LEVEL, Target
from src.recommend.own_question import OwnQuestion
from src.recommend.to_target import Evidence
from src.recommend.words import without
from src.run import files
from src.run.tables import read_mapping

# It draws the folds from which intervals are had.
SEED = 0
TIMES = NormalDist().inv_cdf((1 + LEVEL) / 2)


@dataclass(frozen=True)
class OwnWay:
    """A way of dividing a training over one's own devices.

    Attributes:
        config: of its runs.
        words: of `src.train` that make it.
        called: the strategy with the options that tell it from others.
        parts: the predicted seconds of a step, by part; `None` where they can't be predicted.
        seconds: of a step: measured, or else predicted.
        width: how far the logarithm of these may be off, in 80 of 100 cases.
        own: how far it may be off what other ways are off, as a standard deviation.
        basis: `measured`, `calibrated`, or `profile` where no runs calibrate.
        folders: of the runs that were measured.
        bound: whether their input bounds them; `None` where that isn't known.
        samples_asked: of the whole training. price: of a device for an hour; `None` without prices.
        target: the steps to the target; `None` where a training is of so many samples.
    """

    config: Config
    words: tuple[str, ...]
    called: str
    parts: Parts | None
    seconds: float
    width: float
    own: float
    basis: str
    folders: tuple[str, ...]
    bound: str | None
    samples_asked: float
    price: float | None = None
    target: Target | None = None

    @property
    def strategy(self) -> str:
        """Return the name of its strategy."""
        return str(self.config.strategy["name"])

    @property
    def devices(self) -> int:
        """Return how many it has."""
        return self.config.workers

    @property
    def batch(self) -> int:
        """Return the samples of a step."""
        return self.config.global_batch

    @property
    def name(self) -> str:
        """Return what tells it from others."""
        words = [self.called, *([f"on {self.devices} devices"] if self.devices > 1 else [])]
        words += [f"with {self.config.microbatches} micro-batches"] if self.config.microbatches > 1 else []
        words += ["in parts by speed"] if self.config.batch_shares == "auto" else []
        return " ".join([*words, *([f"at batch {self.batch}"] if self.target is not None else [])])

    @property
    def rate(self) -> float:
        """Return the samples of a second."""
        return self.batch / self.seconds

    @property
    def interval(self) -> tuple[float, float]:
        """Return between which samples a second the rate lies, in 80 of 100 cases."""
        return self.rate * math.exp(-self.width), self.rate * math.exp(self.width)

    @property
    def hours(self) -> float:
        """Return the hours of the whole training, or to the target, without evaluations and start-up."""
        steps = self.samples_asked / self.batch if self.target is None else self.target.steps.median
        return steps * self.seconds / 3600

    @property
    def hours_interval(self) -> tuple[float, float]:
        """Return between which hours that lies, in 80 of 100 cases."""
        below = above = 0.0
        if self.target is not None:
            steps = self.target.steps
            below, above = math.log(steps.median / steps.low), math.log(steps.high / steps.median)
        low, high = math.hypot(self.width, below), math.hypot(self.width, above)
        return self.hours * math.exp(-low), self.hours * math.exp(high)

    @property
    def cost(self) -> float | None:
        """Return what that costs; `None` without prices."""
        return None if self.price is None else self.price * self.devices * self.hours

    # Nothing is said of memory.
    gib = 0.0
    room = math.inf
    fits = True

    @property
    def burdens(self) -> tuple[float, ...]:
        """Return hours and devices, of which less is better."""
        return self.hours, self.devices

    def value(self, aim: str) -> float:
        """Return its figure of an aim, of which more is better."""
        if aim == "cost":
            return 1 / (self.devices * self.hours)
        return 1 / self.hours if aim == "time_to_accuracy" else self.rate

    def apart(self, other: OwnWay) -> float:
        """Return how far the logarithm of the ratio to another one may be off, in 80 of 100 cases.

        The machine is as much faster or slower than believed for both; what exchanges and stages cost beside
        computing counts by how much more of a step it is in one of them.
        """
        steps = 0.0
        if self.target is not None and other.target is not None and self.batch != other.batch:
            steps = self.target.curve.apart(self.batch, other.batch, LEVEL)
        return math.hypot(TIMES * math.hypot(self.own, other.own, self._beside(other)), steps)

    def _beside(self, other: OwnWay) -> float:
        if self.parts is None or other.parts is None or "profile" not in (self.basis, other.basis):
            return 0.0
        shares = [1 - each.compute / each.seconds for each in (self.parts, other.parts)]
        return PRIORS["exchanging"].spread * abs(shares[0] - shares[1])


@dataclass
class OwnFound:
    """The ways that were found, why others could not be, a line each, and on what they rest.

    Attributes:
        subject: what trains.
        ways: those that were measured or are predicted.
        lines: why others can't be had.
        left: why runs don't calibrate.
        unprofiled: runs of which the profile doesn't tell yet.
        evidence: of the steps to a target; `None` without any.
        calibrating: how many configurations were measured.
        disturbed: how many runs count for nothing, as other processes disturbed them.
    """

    subject: str = ""
    ways: list[OwnWay] = field(default_factory=list)
    lines: dict[str, None] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    unprofiled: list[Config] = field(default_factory=list)
    evidence: Evidence | None = None
    calibrating: int = 0
    disturbed: int = 0


def strategies() -> list[str]:
    """Return the strategies of PyTorch that may learn as one device does, and have no mesh to be chosen."""
    found = []
    for path in sorted((CONF / "strategy").glob("*.yaml")):
        known = choices.read(path)
        # A mesh is a user's to choose, by its degrees.
        mesh = known["supports"].get("axis") == MESH
        if known["framework"] == "torch" and known["synchronous"] and not (mesh or known.get("capacity")):
            found.append(path.stem)
    return found


def learns_otherwise(config: Config) -> bool:
    """Return whether the losses of a configuration can't be those of one device."""
    return not config.synchronous or config.strategy.get("parity") not in (None, SYNCHRONOUS)


@dataclass(frozen=True)
class Known:
    """The knowledge of a machine that a profile and runs give.

    Attributes:
        profile: of it.
        fit: to the runs.
        seen: errors of runs that a fit has not seen.
        answers: what runs have measured, by signature.
        noise: by how much the logarithm of a run's seconds scatters, and the degrees of freedom of that.
    """

    profile: Profile
    fit: Fit
    seen: Scores
    answers: runs.Answers
    noise: tuple[float, int]


def of(question: OwnQuestion, profile: Profile, given: Sequence[Path]) -> OwnFound:
    """Find the ways of a question, by a profile of their machine and runs in folders.

    Raises:
        ConfigError: for a mistake in the words.
    """
    found = OwnFound()
    there = runs.finished(given)
    quiet = [run for run in there if not disturbed(read_mapping(run.folder / files.METRICS))]
    found.disturbed = len(there) - len(quiet)
    calibrating, found.left = runs.measured(quiet, profile)
    fit = calibration.fit(calibrating)
    seen = calibration.scores(calibrating, fit, SEED) if calibrating else Scores()
    found.calibrating = len(calibrating)
    answers = runs.answers(quiet, profile.machine)
    known = Known(profile, fit, seen, answers, noise.noise_of(answers))
    samples, had = 0, set()
    for config, words in _configs(question, found):
        had.add((config.global_batch, config.workers))
        if not samples:
            samples = _samples(question, config)
            question.price(config)
            found.evidence = question.evidence(config, samples)
            found.subject = f"{config.model['name']} on {config.dataset['name']}"
        if found.evidence is not None and learns_otherwise(config):
            line = "doesn't learn as one device does, of which the steps to a target are"
            found.lines[f"{config.strategy['name']}: {line}"] = None
            continue
        evidence = found.evidence
        if evidence is not None and (untold := evidence.untold(config.global_batch)):
            found.lines[untold] = evidence = None
            if question.over_batches:
                continue
        try:
            found.ways.append(_way(config, words, question, known, config.epochs * samples, evidence))
        except NotProfiled:
            found.unprofiled.append(config)
        except ConfigError as error:
            found.lines[f"{config.strategy['name']}: {error}"] = None
    if any(count > 1 for _, count in had):
        found.lines |= dict.fromkeys(without(question.batches, question.devices, had))
    return found


def _samples(question: OwnQuestion, config: Config) -> int:
    """Return the samples of an epoch; raise `ConfigError` for a batch of more."""
    if not config.dataset.get("in_memory"):
        available.ensure(config.dataset)
    samples = prepared.samples(config.dataset)
    if (most := max(question.batches)) > samples:
        raise ConfigError(f"batch={most}: the dataset has {samples} samples")
    return samples


def _configs(question: OwnQuestion, found: OwnFound) -> Iterator[tuple[Config, list[str]]]:
    """Yield the runs that the question allows, with their words; add to `found` why others can't be had."""
    for name in question.strategies or strategies():
        path = CONF / "strategy" / f"{name}.yaml"
        if not path.exists():
            known = sorted(each.stem for each in (CONF / "strategy").glob("*.yaml"))
            raise ConfigError(f"strategy={name}: there is no such one; did you mean {nearest(name, known)}?")
        refused: dict[str, None] = {}
        any_of_it = False
        for words in question.variants(choices.read(path)):
            try:
                made = cells.of(words)
            except ConfigError as error:
                if name == "single":
                    # What one device can't have is a mistake.
                    raise
                refused[f"{name}: {error}"] = None
                continue
            if len(made) > 1:
                raise ConfigError("several values are for batch, devices and strategy; say one of all others")
            if not any_of_it and (why := _refusal(made[0])):
                # What its strategy refuses of a model no other variant of it takes.
                refused = {f"{name}: {why}": None}
                if name == "single":
                    raise ConfigError(why)
                break
            any_of_it = True
            if question.strategies or not learns_otherwise(made[0]):
                yield made[0], words
        if not any_of_it:
            # One line says enough of what no variant can have.
            found.lines |= dict.fromkeys([*refused][:1])


def _refusal(config: Config) -> str:
    """Return why a run refuses a model of the user's own, as before a training; nothing where it takes it."""
    if not inspection.has_own(config):
        return ""
    try:
        inspection.inspect([config])
    except (ConfigError, OwnCodeError) as error:
        return str(error)
    return ""


def _way(
    config: Config,
    words: Sequence[str],
    question: OwnQuestion,
    known: Known,
    samples: float,
    evidence: Evidence | None,
) -> OwnWay:
    """Return a way by its runs, or else as it is predicted; raise `ConfigError` where it can't be."""
    try:
        step: OwnStep | None = steps.of(config, known.profile)
        parts = known.fit.parts(step) if step is not None else None
    except ConfigError:
        own = known.answers.get(_signature(config), [])
        if not own:
            raise
        step = parts = None
    own = known.answers.get(_signature(config), [])
    if own:
        seconds = median([each[1] for each in own])
        basis, spread = "measured", noise.spread(known.noise, len(own), LEVEL)
        width = TIMES * spread
    else:
        assert step is not None and parts is not None
        seen = all(key in known.seen.known for key in calibration.keys(step))
        basis, seconds = ("calibrated" if seen else "profile"), parts.seconds
        apart = config.strategy.get("predicted") is not None
        spread = SPREADS["apart" if apart and not seen else "strategy"] / (2 if seen else 1)
        width, _ = known.seen.width(step, LEVEL)
    folders = tuple(each[2] for each in own)
    return OwnWay(
        config=config,
        words=tuple(words),
        called=str(config.strategy["name"]) if step is None else calibration.strategy_of(step),
        parts=parts,
        seconds=seconds,
        width=width,
        own=spread,
        basis=basis,
        folders=folders,
        bound=_bound(folders),
        samples_asked=float(samples),
        price=question.price(config),
        target=None if evidence is None else evidence.target(config.global_batch),
    )


def _signature(config: Config) -> str:
    """Return what runs of a configuration have in common; nothing for one of which none can be told."""
    try:
        return runs.signature(config)
    except ConfigError:
        return ""


def _bound(folders: Sequence[str]) -> str | None:
    """Return what bounds most of the runs in folders; `None` where that isn't known."""
    found = [bound(read_mapping(Path(each) / files.METRICS).get("input_wait_fraction")) for each in folders]
    known = [each for each in found if each is not None]
    return max(set(known), key=known.count) if known else None
