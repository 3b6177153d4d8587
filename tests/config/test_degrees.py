"""Into how many parts a training is divided along each axis, and what is said where that can't be."""

from __future__ import annotations

import math

import pytest

from src.config import ConfigError
from src.config.run_config import Degrees
from tests.support import config


@pytest.mark.parametrize(
    ("strategy", "degrees", "batch"),
    [
        ("single", Degrees(), 1),
        ("ddp", Degrees(data=2), 2),
        ("parameter_server", Degrees(data=2), 2),
        ("tf_mirrored", Degrees(data=2), 2),
        ("pipeline", Degrees(pipeline=2), 1),
        ("model_split", Degrees(pipeline=2), 1),
        ("tf_model_split", Degrees(pipeline=2), 1),
    ],
)
def test_a_strategy_fills_one_axis_with_its_workers(strategy: str, degrees: Degrees, batch: int) -> None:
    chosen = config(f"strategy={strategy}")
    assert chosen.degrees == degrees
    assert math.prod(vars(degrees).values()) == chosen.workers
    assert chosen.data_parallel_degree == batch
    assert chosen.worker_batch == chosen.global_batch // batch


def test_shards_divide_the_batch_as_copies_do_and_stages_see_all_of_it() -> None:
    hybrid = Degrees(data=2, pipeline=3, tensor=2, shard=4)
    hybrid.check(48)
    assert hybrid.batch == 8


def test_another_number_of_workers_is_refused_with_every_factor() -> None:
    says = "workers=3: must be data x pipeline x tensor x shard = 2 x 4 x 1 x 1 = 8"
    with pytest.raises(ConfigError, match=f"^{says}$"):
        Degrees(data=2, pipeline=4).check(3)


@pytest.mark.parametrize(
    ("words", "microbatches"), [((), 1), (("strategy.shard=2",), 1), (("strategy.pipeline=2",), 4)]
)
def test_a_mesh_has_several_microbatches_by_default_only_where_they_fill_stages(
    words: tuple[str, ...], microbatches: int
) -> None:
    assert config("strategy=hybrid", *words).microbatches == microbatches
