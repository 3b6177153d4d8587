"""Ways of dividing a training: those that a machine of nodes can have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from src.config import ConfigError
from src.config.run_config import Degrees
from src.measure.kernels import UPDATE, WAIT, Kernels, Mark, Trace
from src.predict import mesh_steps, stage_choices
from src.predict.looked import Stages
from src.predict.step import Parts
from src.recommend import candidates, described, question
from src.recommend.candidate import Candidate
from src.recommend.space import Space
from tests.support import config

CNN = ("model=cnn", "dataset=mnist", "hardware=a100_80gb", "network=infiniband_hdr")


def space(*words: str) -> Space:
    return Space(question.read([*CNN, *words]), config("model=cnn", "dataset=mnist"), 1.0, 1.0)


def meshes(found: Space, kind: str) -> list[Degrees]:
    return list(found.meshes(kind))


def test_layers_are_split_within_a_node_and_shards_lie_on_one_or_on_all_devices() -> None:
    found = space("devices=2,8,16")
    assert meshes(found, "fsdp") == [
        Degrees(shard=2), Degrees(shard=8), Degrees(shard=16), Degrees(shard=8, data=2),
    ]  # fmt: skip
    assert {each.tensor for each in meshes(found, "tensor_parallel")} == {2, 4, 8}
    # One device tells what several gain, whether or not it may be chosen.
    assert meshes(found, "single") == [Degrees()]
    assert not found.question.takes_one and space("devices=1..8").question.takes_one


def test_parts_that_would_lie_on_two_nodes_are_left_out() -> None:
    assert space("devices=12", "devices_per_node=6").parts() == [2]
    assert space("devices=4", "devices_per_node=1").parts() == []
    assert meshes(space("devices=4", "devices_per_node=1"), "fsdp") == [Degrees(shard=4)]
    # Six copies of a stage, or three, would begin on one node of eight and end on another.
    assert list(space("devices=12", "batch=96").pipelines()) == []
    even = [(each.devices, each.pipeline) for each in space("devices=16", "batch=64").pipelines()]
    assert even == [(16, 2), (16, 4), (16, 8), (16, 16)]


def test_a_strategy_that_is_named_is_alone() -> None:
    found = space("devices=1..8", "strategy=fsdp")
    assert meshes(found, "tensor_parallel") == []
    assert list(found.pipelines()) == []
    assert meshes(found, "fsdp") == [Degrees(shard=each) for each in (2, 4, 8)]


def test_micro_batches_divide_the_part_of_a_copy() -> None:
    found = space("devices=4")
    assert found.counts(36, Degrees(data=4), several=True) == [3, 9]
    assert found.counts(36, Degrees(data=4), several=False) == [1]
    assert found.counts(37, Degrees(data=4), several=False) == []
    two = space("devices=4", "microbatches=2")
    assert (two.counts(64, Degrees(), several=False), two.counts(64, Degrees(), several=True)) == ([], [2])
    asked = space("devices=2", "batch=12", "microbatches=6").pipelines()
    assert [each.microbatches for each in asked] == [(6,)]


def test_a_network_is_needed_between_nodes() -> None:
    with pytest.raises(ConfigError, match="network=: is needed, for 16 devices are on several nodes of 8"):
        question.read(["model=cnn", "hardware=a100_80gb", "devices=2,16"])


def test_copies_of_shards_sum_each_shard_as_soon_as_it_is_there() -> None:
    marks = (
        Mark(1, "reduce_scatter", 80.0, 8, 1, 3),
        Mark(2, "reduce_scatter", 40.0, 8, 1, 4),
        Mark(3, UPDATE),
    )
    found = mesh_steps._with_sums_of_shards(Trace(Kernels.of([]), marks), 4, 8)
    sums = [mark for mark in found.marks if mark.kind == "all_reduce"]
    # Each of eight ranks has its part, and the copies are eight ranks apart.
    assert [(mark.place, mark.size, mark.ranks, mark.stride) for mark in sums] == [
        (1, 10.0, 4, 8), (2, 5.0, 4, 8),
    ]  # fmt: skip
    assert len({mark.call for mark in found.marks if mark.kind != UPDATE}) == 4


def test_copies_of_parts_sum_what_they_have_before_the_update() -> None:
    marks = (Mark(1, "all_reduce", 8.0, 2, 1, 7), Mark(1, WAIT, call=7), Mark(2, UPDATE))
    found = mesh_steps._with_sum(Trace(Kernels.of([]), marks), 100.0, 4, 2)
    assert [mark.kind for mark in found.marks] == ["all_reduce", WAIT, "all_reduce", WAIT, UPDATE]
    assert (found.marks[2].size, found.marks[2].ranks, found.marks[2].stride) == (100.0, 4, 2)


@pytest.mark.parametrize(
    ("failing", "told"), [([8], "tensor_parallel in 8 parts"), ([2, 8], "tensor_parallel")]
)
def test_parts_into_which_a_model_can_not_be_split_are_named(
    failing: list[int], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, found = space("devices=2,8"), candidates.Found()
    every = [(count, "strategy=tensor_parallel: fails" if count in failing else object()) for count in (2, 8)]
    monkeypatch.setattr(candidates.side_by_side, "every", lambda *_: iter([("tensor_parallel", every)]))
    looks = candidates._looks(own, ["tensor_parallel"], own.question.devices, found, 2, None)
    assert found.reasons == [f"{told}: fails"]
    assert {parts for _, parts in looks} == {2, 8} - {*failing}


def test_for_the_least_memory_copies_have_each_number_of_micro_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        candidates,
        "_candidate",
        lambda _, __, degrees, batch, count: SimpleNamespace(
            degrees=degrees, batch=batch, microbatches=count, fits=True
        ),
    )
    for aim, wanted in (("memory", [1, 2, 4, 8]), ("throughput", [1])):
        own, found, looks = (
            space("devices=2", "batch=16", f"aim={aim}"),
            candidates.Found(),
            {("ddp", 0): None},
        )
        for several in (False, True):
            candidates._copies(own, looks, found, several=several)  # type: ignore[arg-type]
        assert [each.microbatches for each in found.candidates] == wanted


def test_nodes_that_are_not_filled_are_taken_one_after_another() -> None:
    def typed(devices: int) -> str:
        asked = question.read([*CNN, f"devices={devices}", "batch=96"])
        parts = Parts(1.0, 0.0, 0.0, 0.0)
        degrees = Degrees(tensor=4, data=devices // 4)
        chosen = Candidate(degrees, 96, 1, 32, parts, {"weights": 1.0}, 0.0, 1e9, 6e4)
        return described.typed(chosen, asked)

    assert "hardware=cluster hardware.hosts=2" in typed(16)
    # By two hosts they would be six and six, and the second four of them on both.
    assert "hardware=cluster" in typed(12) and "hardware.hosts" not in typed(12)
    assert "hardware=cluster" not in typed(8)


class Timed:
    """Stages of which so many micro-batches take so long."""

    def __init__(self, row: object, laid_out: object, cut: Any) -> None:
        self.count = cut.own.microbatches

    def parts(self, constants: object) -> Parts:
        return Parts(float(self.count), 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("room", "chosen", "looked"), [(9.0, 1, 1), (3.0, 4, 4), (1.0, 8, 4), (0.0, 8, 3), (5.0, 2, 2)]
)
def test_the_quickest_number_of_micro_batches_that_fits_is_found(
    room: float, chosen: int, looked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def most(plan: object, own: Any, ranks: object) -> dict[str, float]:
        tried.append(own.microbatches)
        return {"activations": 8 / own.microbatches}

    plan = SimpleNamespace(stages=[SimpleNamespace(memory_bytes=1.0)] * 2)
    model: Any = SimpleNamespace(
        batchnorm=False, kernels=None, weights=1.0, most=most, plan=lambda *_: plan, profile=lambda _: None
    )
    for name, replaced in {
        "_config": lambda _, __, count: SimpleNamespace(
            microbatches=count, microbatch=2, strategy={"recompute": "none"}
        ),
        "nearby": lambda _: None,
        "layout": lambda _: None,
        "Cut": lambda own, *_: SimpleNamespace(own=own),
        "TracedStages": Timed,
    }.items():
        monkeypatch.setattr(stage_choices, name, replaced)
    asked: Any = SimpleNamespace(row=lambda *_: None)
    wanted = Stages(2, 2, 64, (1, 2, 4, 8))
    found = stage_choices._quickest(asked, config("model=cnn"), model, wanted, room)
    # Half of what the number before holds, and twice as long: four fits into three, and two doesn't.
    assert found.microbatches == chosen and len(tried) == looked
