"""One training as the parent sees it: processes are started, watched, started again, and none is left."""

from __future__ import annotations

import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from src import tracking
from src.config import Config
from src.data import available
from src.launch import ranks as launch
from src.launch.place import CAME
from src.measure import environment
from src.measure.sampler import Sampler
from src.progress import LiveProgress

ENDING = (signal.SIGINT, signal.SIGTERM)
# Results, or what would happen again.
FINAL = (launch.EXIT_MISTAKE, launch.EXIT_OUT_OF_MEMORY, launch.EXIT_DISK_FULL)


@dataclass
class Attempt:
    """What the parent saw of one training."""

    outcome: launch.Outcome = field(default_factory=lambda: launch.Outcome(code=1))
    ranks: list[launch.Rank] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)
    # (time, CPU seconds that servers and coordinators had used until then).
    helper_seconds: list[tuple[float, float]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    restarts: int = 0

    @property
    def status(self) -> str:
        """`ok`, `out_of_memory` or `failed`; an interrupted run counts as failed."""
        if self.outcome.code == launch.EXIT_OUT_OF_MEMORY:
            return "out_of_memory"
        return "failed" if self.outcome.code else "ok"

    def blamed(self) -> launch.Rank | None:
        """Who failed first; `None` when nobody did."""
        return None if self.outcome.failed is None else self.ranks[self.outcome.failed]

    def how(self) -> str:
        """What became of who failed first."""
        rank, code = self.blamed(), self.outcome.code
        assert rank is not None
        end = f"failed with exit status {code}" if code > 0 else f"was killed by {signal.Signals(-code).name}"
        return f"{rank.place.name.replace('-', ' ')} {end}"


def make(
    config: Config, work: Path, tracker: tracking.ParentTracker, *, started: float, sweep: bool
) -> Attempt:
    """Trains one configuration; `work` is the run's directory.

    A process that the job can do without is started again when it dies. When another one dies all of
    them are, to resume at the last checkpoint: both `strategy.max_restarts` times at most.
    """
    attempt = Attempt()
    opening = threading.Thread(target=_open, args=(tracker, sweep, work), daemon=True)
    try:
        attempt.ranks = launch.start(config, work, started=started)
        # While the ranks import their framework, which takes longer.
        opening.start()
        attempt.environment = environment.describe(config)
        _watch(config, work, attempt)
    except KeyboardInterrupt:
        attempt.interrupted = True
    finally:
        # A second Ctrl-C must not stop the stopping.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
        launch.stop(attempt.ranks)
        if opening.ident is not None:
            opening.join()
        for number, handler in before.items():
            signal.signal(number, handler)
    return attempt


def _watch(config: Config, work: Path, attempt: Attempt) -> None:
    sampler = Sampler(work / "trace.csv", config.hardware["sample_seconds"])
    attempt.trace, attempt.helper_seconds = sampler.rows, sampler.helper_seconds
    most = config.strategy.get("max_restarts", 0)
    deadline = time.monotonic() + (2 * config.max_minutes + config.hardware["grace_minutes"]) * 60

    def revive(rank: launch.Rank) -> bool:
        if attempt.restarts == most:
            return False
        attempt.restarts += 1
        say(f"{rank.place.name.replace('-', ' ')} has died and is started again")
        launch.restart(rank, work)
        _follow(sampler, attempt.ranks)
        return True

    def say(what: str) -> None:
        print(f"  {what} ({attempt.restarts} of {most} restarts)", file=sys.stderr, flush=True)

    with sampler, LiveProgress(config, work, available.samples(config.dataset)) as progress:
        while True:
            _follow(sampler, attempt.ranks)
            limit = deadline - time.monotonic()
            attempt.outcome = launch.supervise(
                attempt.ranks,
                limit=limit,
                tick=progress.tick,
                revive=revive,
                came=lambda rank: (work / "ranks" / str(rank.number) / CAME).exists(),
            )
            outcome = attempt.outcome
            if not outcome.code or outcome.timed_out or outcome.code in FINAL:
                return
            resume = next(iter(work.glob("checkpoint.*")), None)
            # What fails before a step was completed would fail again.
            if attempt.restarts == most or not (resume or _has_trained(work)):
                return
            attempt.restarts += 1
            where = "the last checkpoint" if resume else "the first step, for there is no checkpoint"
            say(f"{attempt.how()}; all are started again, from {where}")
            attempt.ranks = launch.start(config, work, started=time.time(), resume=resume)


def _follow(sampler: Sampler, ranks: list[launch.Rank]) -> None:
    sampler.follow(
        [(r.number, r.process.pid, device) for r in ranks if not r.place.helper for device in r.devices],
        [rank.process.pid for rank in ranks if rank.place.helper],
    )


def _has_trained(work: Path) -> bool:
    """Whether a step was completed."""
    path = work / "ranks" / "0" / "steps.csv"
    return path.exists() and path.read_bytes().count(b"\n") > 1


def _open(tracker: tracking.ParentTracker, sweep: bool, folder: Path) -> None:
    tracker.open(sweep=sweep)
    tracking.go(folder, tracker)
