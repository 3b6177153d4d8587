"""Costs measured on real models, and the cuts that follow from them."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
from functools import cache

import numpy as np
import pytest
import torch

from src.config import ConfigError
from src.partition import balance, model_profile, plan, plan_table
from src.partition.model_profile import Costs, Link, ModelProfile
from src.partition.plan import Demands
from src.partition.torch import cost
from src.partition.torch.graph import operations
from tests.partition import models

LINK = Link(latency=1e-4, seconds_per_byte=1e-9)


@cache
def measured(name: str) -> tuple[ModelProfile, Costs]:
    """A model's outline and costs for micro-batches of four."""
    _, model = models.of(name)
    inputs = models.images(4).float()
    graph = operations(model.float(), inputs)
    return graph.profile(graph.values(inputs)), cost.costs(graph, inputs)


def wanted(partition: object, stages: int = 2, **overrides: object) -> Demands:
    known: dict[str, object] = {
        **{"partition": partition, "microbatches": 4, "overlaps": True, "state": 3},
        **{"in_flight": [4] * stages, "speeds": [1.0] * stages, "memory_limit": None},
    }
    return Demands(**{**known, **overrides})


def test_measuring_leaves_the_model_alone() -> None:
    _, model = models.of("resnet18")
    inputs = models.images(2).float()
    graph = operations(model.float(), inputs)
    before = copy.deepcopy(dict(graph.module.state_dict()))
    random = torch.random.get_rng_state()
    costs = cost.costs(graph, inputs)
    assert all(torch.equal(value, before[name]) for name, value in graph.module.state_dict().items())
    assert all(parameter.grad is None for parameter in graph.module.parameters())
    assert torch.equal(random, torch.random.get_rng_state())
    assert (costs.seconds > 0).all()


def test_passes_are_measured_apart() -> None:
    _, model = models.of("cnn")
    inputs = models.images(4).float()
    costs = cost.costs(operations(model.float(), inputs), inputs, splits=True)
    forward, for_inputs, for_weights = costs.passes()
    assert (forward > 0).all() and (for_weights >= 0).all()
    # Nobody waits for the gradient of the images.
    assert for_inputs[0] == 0 and (for_inputs[1:] > 0).all()
    assert np.allclose(forward + for_inputs + for_weights, costs.seconds)
    apart = dataclasses.replace(costs, forward_seconds=None, input_backward_seconds=None).passes()
    assert all(np.allclose(part, costs.seconds / 3) for part in apart)


def test_parameters_and_activations_of_operations_by_hand() -> None:
    _, model = models.of("cnn")
    inputs = models.images(4).float()
    graph = operations(model.float(), inputs)
    costs = cost.costs(graph, inputs)
    by_name = dict(zip([op.name for op in graph.operations], costs.parameters.astype(int), strict=True))
    assert sorted(value for value in by_name.values() if value) == [520, 5010, 25_050, 400_500]
    assert costs.parameters.sum() * 4 == costs.weight_bytes.sum()
    # The first convolution keeps its input: 4 images of 28 x 28 floats.
    assert costs.kept_bytes[0] == 4 * 28 * 28 * 4


@pytest.mark.parametrize(
    ("name", "stages"), [pytest.param("resnet101", 2, marks=pytest.mark.slow), ("resnet18", 3)]
)
def test_optimal_equals_every_possible_cut(name: str, stages: int) -> None:
    model, costs = measured(name)
    demands = wanted("optimal", stages)
    problem = plan.problem_of(model, costs, LINK, demands)
    chosen = plan.make(model, costs, LINK, demands)
    cuts = itertools.combinations(range(1, len(model.names)), stages - 1)
    best = min(balance.costliest(problem, cut) for cut in cuts)
    assert balance.costliest(problem, chosen.boundaries) == pytest.approx(best, rel=1e-9)
    for method in ("layers", "size", "time"):
        other = plan.make(model, costs, LINK, dataclasses.replace(demands, partition=method))
        assert balance.costliest(problem, other.boundaries) >= best * (1 - 1e-9)


def test_a_plan_adds_up() -> None:
    model, costs = measured("resnet18")
    planned = plan.make(model, costs, LINK, wanted("size"))
    assert sum(stage.parameters for stage in planned.stages) == costs.parameters.sum()
    assert sum(stage.seconds for stage in planned.stages) == pytest.approx(costs.seconds.sum())
    taken = [stage.seconds + stage.transfer_seconds for stage in planned.stages]
    # (m - 1) x the slowest + the sum, for four micro-batches.
    assert planned.predicted_step_seconds == pytest.approx(3 * max(taken) + sum(taken))
    first = planned.stages[0]
    sent = model.crossing[first.stop]
    assert first.sends == [value.name for value in sent]
    assert first.sent_bytes == sum(value.nbytes for value in sent)
    # Forward and back, a tensor each way and live value.
    each = [1e-4 + value.nbytes * 1e-9 for value in sent]
    assert first.transfer_seconds == pytest.approx(2 * sum(each))
    kept_bytes = costs.kept_bytes[: first.stop].sum()
    assert first.memory_bytes == pytest.approx(3 * costs.weight_bytes[: first.stop].sum() + 4 * kept_bytes)
    assert json.loads(planned.json())["boundaries"] == planned.boundaries
    assert plan.Plan.from_json(planned.json()) == planned
    shown = plan_table.show(planned)
    assert "cut of 69 operations by size" in shown and planned.stages[1].first in shown


def test_without_overlap_the_stages_add_up() -> None:
    model, costs = measured("resnet18")
    planned = plan.make(model, costs, LINK, wanted("layers", overlaps=False))
    taken = sum(stage.seconds + stage.transfer_seconds for stage in planned.stages)
    assert planned.predicted_step_seconds == pytest.approx(4 * taken)


@pytest.mark.slow
def test_given_cuts() -> None:
    model, costs = measured("resnet101")
    planned = plan.make(model, costs, LINK, wanted([140, 230]))
    assert (planned.boundaries, planned.method) == ([131], "given")
    planned = plan.make(model, costs, LINK, wanted(["layer3.5.conv2"]))
    assert planned.boundaries == [133]
    assert len(planned.stages[0].sends) == 2
    with pytest.raises(ConfigError, match="in order"):
        plan.make(model, costs, LINK, wanted(["layer3", "layer2"], 3))


def test_a_given_cut_that_does_not_fit_names_the_way_out() -> None:
    model, costs = measured("resnet18")
    least = plan.make(model, costs, LINK, wanted("optimal"))
    limit = max(stage.memory_bytes for stage in least.stages)
    uneven = wanted([1, 30], memory_limit=limit)
    with pytest.raises(ConfigError, match="partition=optimal finds one that fits"):
        plan.make(model, costs, LINK, uneven)
    with pytest.raises(ConfigError, match="even at the best cut"):
        plan.make(model, costs, LINK, wanted("optimal", memory_limit=limit / 10))


def test_costs_survive_the_way_to_the_other_ranks() -> None:
    _, costs = measured("resnet18")
    numbers = json.loads(json.dumps(model_profile.as_numbers(costs, LINK)))
    back, link = model_profile.from_numbers(numbers)
    assert link == LINK
    assert all(
        np.array_equal(getattr(back, field.name), getattr(costs, field.name))
        for field in dataclasses.fields(Costs)
    )


def test_bf16_activations_cross_in_bf16() -> None:
    _, model = models.of("resnet18")
    inputs = models.images(2).float()
    graph = operations(model.float(), inputs)
    name = graph.live[1][0].name
    assert graph.values(inputs)[name].dtype == torch.float32
    assert graph.values(inputs, precision="bf16")[name].dtype == torch.bfloat16
