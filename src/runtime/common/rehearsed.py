"""Say what a process rehearses in the place of a training: which run's steps, and how many of them."""

from __future__ import annotations

import dataclasses

from src.config import Config

# Steps that are kept after the warm-up, and seconds after which fewer are enough.
STEPS, LEAST, SECONDS = 24, 6, 10.0
LEAST_RATE = 1e-12
MOST_MINUTES = 60


class Rehearsed(BaseException):
    """Ends a rehearsal from within a framework's loop."""


def rehearsed(config: Config) -> tuple[Config, str]:
    """Return the configuration of the training that a process rehearses, and its strategy's entry."""
    rehearsal = config.strategy["rehearsal"]
    strategy = {key: value for key, value in config.strategy.items() if key != "rehearsal"}
    strategy["entry"] = rehearsal["entry"]
    hardware = dataclasses.replace(config.hardware, links=rehearsal["links"])
    whole = dataclasses.replace(
        config,
        strategy=strategy,
        workers=rehearsal["workers"],
        hardware=hardware,
        # Weights stay as they are: what ranks that aren't there would send is made up.
        optimizer={**config.optimizer, "lr": LEAST_RATE, "scale_lr": "none", "warmup_steps": 0},
        max_minutes=MOST_MINUTES,
        evaluate_every=None,
        checkpoint_every=None,
        target_accuracy=None,
        stop_at_target=False,
    )
    return whole, rehearsal["entry"]


def is_enough(steps: int, seconds: float) -> bool:
    """Return whether so many steps, which took so many seconds, are enough."""
    return steps >= STEPS or (steps >= LEAST and seconds > SECONDS)


def too_few(epochs: int, steps: int, wanted: int) -> str:
    """Say that a training ended after too few steps, of which `wanted` are."""
    return (
        f"epochs={epochs}: the training ended after {steps} steps, which are too few to be rehearsed; give "
        f"it {wanted}"
    )
