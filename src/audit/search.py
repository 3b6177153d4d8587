"""Audit one strategy: hold it against one device, and search for the cause where it differs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from src.audit import cells, records
from src.audit.causes import CAUSES, RESUMED, Cause
from src.audit.cells import Pair
from src.audit.finding import Finding
from src.audit.records import Gap, Record, first_gap, largest
from src.audit.runs import RunFailed, Runner
from src.config import Config
from src.measure.arithmetic import PARITY_BOUND, PARITY_STEPS, parity_gap, parity_holds

# What rounding does to ten steps in float64 stays below this.
SHARP_BOUND = 1e-8
# What rounding does to them in fp32 does, where a model can't be run in float64.
OWN_BOUND = 1e-3
SHARP, OWN = "fp64", "own"


class Audit:
    """An audit of one strategy, by a runner that all of a command's audits share."""

    def __init__(self, runner: Runner, pair: Pair) -> None:
        """Audit the run of a pair, by a runner that is shared with other audits."""
        self._runner = runner
        self._config = pair.run
        self._plain = pair.plain
        self._label = pair.label
        # What several references are told apart by.
        self._of = "".join(f", {word}" for word in pair.label.split(", ")[1:])
        self._gap: Gap | None = None
        # In what precision causes are searched for, and what is a gap there.
        self._precision, self._bound = SHARP, SHARP_BOUND

    def find(self) -> Finding:
        """Run both in float64 and in the run's own precision, search for the cause, and return all of it.

        Raises:
            RunFailed: where a training doesn't come to its end.
        """
        config = self._config
        follows = config.strategy["name"] in cells.RULES
        against = "one process that follows its rule" if follows else "one device"
        finding = Finding(self._label, against, config.precision)
        if not config.synchronous and not follows:
            finding.by_design = str(config.strategy["parity"])
            config = self._config = cells.one_at_a_time(config)
            finding.name += " (audited with one worker)"
        if config.framework != "torch":
            self._losses_alone(finding)
            return finding
        try:
            self._reference(SHARP)
        except RunFailed as error:
            # The model itself can't, where it can in its own precision; else that run says so.
            self._precision, self._bound = OWN, OWN_BOUND
            finding.notes.append(f"It was not audited in float64: {error}.")
        reference = self._reference(self._precision)
        if wrong := next((step for step, loss in reference.losses.items() if not math.isfinite(loss)), None):
            finding.same[self._precision] = False
            finding.notes.append(f"One device's loss of step {wrong} is no number: nothing can be compared.")
            return finding
        self._in_own_precision(finding)
        run = self._run(self._precision)
        self._gap = first_gap(run, reference, self._bound)
        if self._precision == SHARP:
            finding.gaps = {SHARP: largest(run, reference), **finding.gaps}
            finding.same[SHARP] = self._gap is None
            if self._gap is None and finding.same[OWN] is False:
                finding.notes.append(
                    f"In float64 it is the same: its losses in {config.precision} differ by more than "
                    "rounding does to one device."
                )
        if self._gap is not None and not finding.is_same:
            finding.first = [self._gap, *self._gradient_of(run, reference)]
            # The reference has the whole model, of whose buffers a stage doesn't know which are BatchNorm's.
            missing = run.facts.get("without_gradient") or reference.facts.get("without_gradient")
            facts = {**run.facts, **reference.facts, "without_gradient": missing}
            self._search(finding, facts)
        return finding

    def find_resumed(self) -> Finding:
        """Hold a run that goes on at the checkpoint of its middle against one that isn't stopped."""
        finding = Finding(f"{self._label}, resumed", "a run that isn't stopped", self._config.precision)
        gap, finding.gaps[SHARP] = self._resumed(cells.prepared(self._config, SHARP), "")
        finding.same = {SHARP: gap is None}
        finding.first = [] if gap is None else [gap]
        if gap is not None:
            change = cells.without_state(cells.prepared(self._config, SHARP))
            again, _ = self._resumed(change, f", {RESUMED.change}")
            finding.tested.append({"causes": [RESUMED.name], "change": RESUMED.change, "same": again is None})
            finding.causes = [RESUMED] if again is None else []
        return finding

    def _resumed(self, config: Config, change: str) -> tuple[Gap | None, dict[str, float]]:
        """Return the first gap of the resumed run to the one that isn't stopped, and the largest ones."""
        whole = self._runner.run(config, f"{self._label} in float64{change}")
        stopped = self._runner.stopped(config, f"{self._label}, stopped{change}")
        resumed = self._runner.run(replace(config, resume=stopped), f"{self._label}, resumed{change}")
        later = {step: loss for step, loss in whole.losses.items() if step in resumed.losses}
        whole = replace(whole, losses=later)
        return first_gap(resumed, whole, SHARP_BOUND), largest(resumed, whole)

    def _in_own_precision(self, finding: Finding) -> None:
        reference, run = self._reference(OWN), self._run(OWN)
        finding.gaps[OWN] = largest(run, reference)
        finding.rounding_gap = reference.rounding_gap
        gap = parity_gap(list(run.losses.values()), list(reference.losses.values()))
        if gap is None:
            gap = finding.gaps[OWN].get("loss", 0.0)
        finding.same[OWN] = parity_holds(gap, reference.rounding_gap)
        if finding.same[OWN] is None:
            finding.notes.append("Its losses are unstable: rounding alone changes them as much.")

    def _losses_alone(self, finding: Finding) -> None:
        """Compare the losses of strategies whose tensors aren't watched."""
        self._in_own_precision(finding)
        finding.notes.append(
            f"Of TensorFlow's strategies the losses of {PARITY_STEPS} steps are compared, no cause is tested."
        )
        if finding.same[OWN] is False:
            self._gap = first_gap(self._run(OWN), self._reference(OWN), PARITY_BOUND)
            finding.first = [] if self._gap is None else [self._gap]

    def _search(self, finding: Finding, facts: Mapping[str, object]) -> None:
        """Test the plausible causes one by one; where none alone is it, test which of them together are."""
        plain = cells.prepared(self._plain, self._precision)
        repeated = self._runner.run(plain, f"one device once more{self._of}", again=True)
        reproducible = first_gap(repeated, self._reference(self._precision), self._bound) is None
        if not reproducible:
            finding.notes.append("One device doesn't compute the same twice.")
        plausible = [
            cause for cause in CAUSES if cause.refines is None and cause.plausible(self._config, facts)
        ]
        for cause in plausible:
            if self._test([cause], finding):
                finding.causes = [self._refined(cause, finding, facts)]
                return
        if len(plausible) > 1 and self._test(plausible, finding):
            needed = list(plausible)
            # The more general ones first: what a special one explains is not theirs.
            for cause in reversed(plausible):
                fewer = _without(needed, cause)
                if fewer and self._test(fewer, finding):
                    needed = fewer
            finding.causes = needed
        if not finding.causes and facts.get("draws_random_numbers"):
            finding.notes.append("The model draws random numbers, not all of which may have been held still.")

    def _refined(self, cause: Cause, finding: Finding, facts: Mapping[str, object]) -> Cause:
        """Return the cause that is more special than a confirmed one and is confirmed too, or this one."""
        for finer in CAUSES:
            plausible = finer.refines == cause.name and finer.plausible(self._config, facts)
            if plausible and self._test([finer], finding):
                return finer
        return cause

    def _test(self, causes: Sequence[Cause], finding: Finding) -> bool:
        """Change what these causes are about, on both sides; return whether the runs are the same then."""
        run, reference = (cells.prepared(each, self._precision) for each in (self._config, self._plain))
        for cause in causes:
            if cause.reference is not None:
                reference = cause.reference(reference, run)
        for cause in causes:
            run = cause.audited(run)
        change = " and ".join(cause.change for cause in causes)
        try:
            known = self._runner.run(cells.following(reference, run), f"one device, {change}{self._of}")
            found = self._of_whole_model(self._runner.run(run, f"{self._label}, {change}"))
        except RunFailed as error:
            finding.tested.append(
                {"causes": [c.name for c in causes], "change": change, "failed": str(error)}
            )
            return False
        gap = first_gap(found, known, self._bound)
        finding.tested.append(
            {
                "causes": [cause.name for cause in causes],
                "change": change,
                "same": gap is None,
                "first_difference": None if gap is None else str(gap),
            }
        )
        return gap is None

    def _gradient_of(self, run: Record, reference: Record) -> list[Gap]:
        """Return the largest gap of a gradient in the step where the loss begins to differ."""
        assert self._gap is not None
        if self._gap.kind != "loss":
            return []
        step = self._gap.step
        of_step = [gap for gap in records.gaps(run, reference) if gap.step == step]
        return [gap for gap in of_step if gap.kind == "gradients" and not gap.size <= self._bound]

    def _reference(self, precision: str) -> Record:
        plain, run = cells.prepared(self._plain, precision), cells.prepared(self._config, precision)
        shown = "float64" if precision == SHARP else self._config.precision
        return self._runner.run(cells.following(plain, run), f"one device in {shown}{self._of}")

    def _run(self, precision: str) -> Record:
        config = cells.prepared(self._config, precision)
        shown = "float64" if precision == SHARP else self._config.precision
        return self._of_whole_model(self._runner.run(config, f"{self._label} in {shown}"))

    def _of_whole_model(self, record: Record) -> Record:
        """Return a record of the whole model, where each rank had a part of it or of its gradients."""
        if "serve" in self._config.strategy:
            record = records.summed(record)
            # What workers push isn't clipped yet.
            clips = self._config.optimizer["clip_norm"] is not None
            return records.without_gradients(record) if clips else record
        return records.joined(record, self._config.degrees.batch_part) if self._config.cuts else record


def _without(causes: Sequence[Cause], left_out: Cause) -> list[Cause]:
    return [cause for cause in causes if cause is not left_out]
