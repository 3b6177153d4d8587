"""A strategy's options as typed attributes: those that it has, of a run's configuration."""

from __future__ import annotations

import pytest

from src.partition.plan import CutOptions
from src.strategies.torch import parameter_server
from tests.support import config


def test_options_that_a_strategy_lacks_have_their_defaults() -> None:
    pipeline = CutOptions.of(config("strategy=pipeline", "strategy.recompute=full"))
    assert (pipeline.partition, pipeline.schedule, pipeline.recompute) == ("optimal", "gpipe", "full")
    split = CutOptions.of(config("strategy=model_split"))
    assert (split.schedule, split.recompute, split.speeds) == (None, "none", None)


def test_a_strategy_without_an_option_that_its_code_needs_fails_at_once() -> None:
    with pytest.raises(TypeError, match="partition"):
        CutOptions.of(config("strategy=ddp"))


@pytest.mark.parametrize(("mode", "every"), [("sync", (1, 1)), ("shat", (1, 1)), ("downpour", (4, 3))])
def test_downpour_alone_fetches_and_pushes_more_seldom(mode: str, every: tuple[int, int]) -> None:
    words = ("strategy=parameter_server", "strategy.fetch_every=4", "strategy.push_every=3")
    options = parameter_server.Options.of(config(*words, f"strategy.mode={mode}"))
    assert (options.fetch_every, options.push_every) == every


def test_an_empty_mapping_empties_one() -> None:
    images = ("dataset=vnfoods30", "dataset.source=generated", "dataset.size=28")
    assert config(*images).dataset["options"]["counts"]["train"] == 17581
    assert config(*images, "dataset.options.counts={}").dataset["options"]["counts"] == {}
    words = ("dataset.options.counts={}", "dataset.options.counts.train=5")
    assert config(*images, *words).dataset["options"]["counts"] == {"train": 5}
