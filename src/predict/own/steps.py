"""Make the step of a run that a profile predicts: a rehearsed one, or one of a model that is cut."""

from __future__ import annotations

from src.config import Config
from src.predict.own import added, cost_profile, stand_in
from src.predict.own.cost_profile import OPERATIONS, Profile
from src.predict.own.exchange_times import ExchangeTimes
from src.predict.own.rehearsed_step import RehearsedStep
from src.predict.own.stages import StageStep

OwnStep = RehearsedStep | StageStep


def of(config: Config, profile: Profile, network: float = 1.0) -> OwnStep:
    """Return the step of a run.

    Args:
        config: the run's.
        profile: of its machine.
        network: how many times as fast its network is as it was measured.

    Raises:
        ConfigError: where the profile has nothing from which it can be predicted.
    """
    points = profile.of(config)
    exchanges = added.anything(config, stand_in.of(config))
    times = ExchangeTimes.of(profile, config, network) if exchanges else None
    if cost_profile.kind_of(config) == OPERATIONS:
        assert times is not None
        return StageStep(config, points, times)
    return RehearsedStep(config, points, times)
