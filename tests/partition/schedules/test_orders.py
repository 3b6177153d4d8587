"""Each rank's actions are those that torch's schedules have, and each pass is there once."""

from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from torch.distributed.pipelining import schedules as torch_schedules

from src.config.schedules import SCHEDULES, Placement, refusal
from src.partition.schedules.actions import Kind
from src.partition.schedules.tables import ORDERS, table
from src.runtime.torch.pipeline.schedules import TORCH_NAMES


class Stage(SimpleNamespace):
    """All that a schedule asks of a stage; its passes are written down, and nothing is sent."""

    has_backward = True
    submod = None
    stage_index_to_group_rank: ClassVar[dict[int, int]] = {}

    def forward_one_chunk(self, number: int, *_: Any, **__: Any) -> None:
        self.done.append(f"{self.stage_index}F{number}")

    def backward_one_chunk(self, number: int, *_: Any, **__: Any) -> None:
        self.done.append(f"{self.stage_index}B{number}")

    def __getattr__(self, name: str) -> Any:
        return lambda *_: []


def stage(index: int, ranks: int, count: int) -> Stage:
    return Stage(
        stage_index=index,
        num_stages=count,
        group_size=ranks,
        group_rank=0,
        is_first=index == 0,
        is_last=False,
        done=[],
    )


def of_torch(name: str, ranks: int, virtual: int, microbatches: int) -> list[list[str]]:
    """The actions of torch's schedule, an overlapped pair one after the other."""
    made = torch_schedules.get_schedule_class(TORCH_NAMES[name])
    if issubclass(made, torch_schedules.PipelineScheduleSingle):
        stages = [stage(rank, ranks, ranks) for rank in range(ranks)]
        for each in stages:
            schedule = made(each, microbatches, loss_fn=lambda *_: None)
            schedule._initialize_stage = lambda *_: None
            schedule._step_microbatches([()] * microbatches, [{}] * microbatches)
        return [each.done for each in stages]
    local = SCHEDULES[name].placement.stages(0, ranks, virtual)
    order = made([stage(index, ranks, ranks * virtual) for index in local], microbatches).pipeline_order
    return [
        [str(each) for action in order[rank] if action for each in action.sub_actions or (action,)]
        for rank in range(ranks)
    ]


CASES = [
    case
    for case in itertools.product(TORCH_NAMES, (1, 2, 3, 4, 8), (1, 2, 3), (1, 2, 3, 4, 5, 8, 12, 16))
    if refusal(*case) is None
]


@pytest.mark.parametrize("name", TORCH_NAMES)
def test_they_are_torchs(name: str) -> None:
    cases = [case for case in CASES if case[0] == name]
    assert len(cases) > 10
    for case in cases:
        assert [[str(action) for action in own] for own in table(*case)] == of_torch(*case), case


@pytest.mark.parametrize("name", TORCH_NAMES)
def test_each_stage_passes_each_micro_batch_once(name: str) -> None:
    for _, ranks, virtual, microbatches in (case for case in CASES if case[0] == name):
        found = Counter(itertools.chain(*table(name, ranks, virtual, microbatches)))
        assert set(found.values()) == {1}
        for index, number in itertools.product(range(ranks * virtual), range(microbatches)):
            kinds = {kind for kind in Kind if found[index, kind, number]}
            apart = {Kind.FORWARD, Kind.INPUT_BACKWARD, Kind.WEIGHT_BACKWARD}
            assert kinds == {Kind.FORWARD, Kind.BACKWARD} or (SCHEDULES[name].splits and kinds == apart)


def test_each_schedule_that_is_listed_has_an_order_and_torchs_name() -> None:
    assert SCHEDULES.keys() == ORDERS.keys() == TORCH_NAMES.keys()


def test_stages_lie_in_a_loop_or_in_a_v() -> None:
    assert Placement.LOOP.stages(1, 4, 2) == (1, 5)
    assert [Placement.V.stages(rank, 4, 2) for rank in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]


def test_a_step_without_a_schedule_is_one_micro_batch_after_the_other() -> None:
    assert [str(action) for action in table(None, 2, 1, 2)[1]] == ["1F0", "1B0", "1F1", "1B1"]


def test_what_a_schedule_cannot_have_is_said() -> None:
    assert refusal("1f1b", 4, 1, 3) == (
        "microbatches=3: strategy.schedule=1f1b needs at least as many as there are stages, 4"
    )
    assert refusal("dualpipe_v", 2, 2, 3) is not None
    assert refusal("zbv", 2, 3, 8) == "strategy.virtual_stages=3: strategy.schedule=zbv has 2 a worker"
    assert refusal("looped_bfs", 2, 0, 8) == (
        "strategy.virtual_stages=0: strategy.schedule=looped_bfs has at least 1 a worker"
    )
    assert refusal("interleaved", 2, 2, 5) == (
        "microbatches=5: strategy.schedule=interleaved does them in 2 rounds of equal size; the nearest is 4"
    )
    assert refusal("zigzag", 2, 1, 4) is not None
    with pytest.raises(ValueError, match="gpipe has 1 a worker"):
        table("gpipe", 2, 2, 4)
