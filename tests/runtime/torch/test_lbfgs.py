"""L-BFGS: its direction is that of the dense formula, and a step never makes a loss worse."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from src.runtime.torch.parameter_server.lbfgs import LBFGS

torch.manual_seed(0)
SHAPE = torch.diag(torch.tensor([1.0, 4.0, 9.0, 25.0], dtype=torch.float64))


def quadratic(values: Tensor) -> tuple[float, Tensor]:
    return float(values @ SHAPE @ values / 2), SHAPE @ values


def rosenbrock(values: Tensor) -> tuple[float, Tensor]:
    x, y = values.tolist()
    loss = (1 - x) ** 2 + 100 * (y - x * x) ** 2
    return loss, torch.tensor([-2 * (1 - x) - 400 * x * (y - x * x), 200 * (y - x * x)], dtype=torch.float64)


def test_the_direction_is_that_of_the_dense_formula() -> None:
    solver = LBFGS(history=10)
    values = torch.tensor([3.0, -2.0, 1.0, 0.5], dtype=torch.float64)
    pairs = []
    for _ in range(3):
        before = values.clone()
        solver.step(values, quadratic)
        pairs.append((values - before, quadratic(values)[1] - quadratic(before)[1]))
    step, change = pairs[-1]
    inverse = torch.eye(4, dtype=torch.float64) * (step @ change / (change @ change))
    # Nocedal & Wright (6.17), pair by pair.
    for step, change in pairs:
        rho = 1 / (step @ change)
        left = torch.eye(4, dtype=torch.float64) - rho * torch.outer(step, change)
        inverse = left @ inverse @ left.T + rho * torch.outer(step, step)
    _, gradient = quadratic(values)
    torch.testing.assert_close(solver.direction(gradient), -inverse @ gradient, rtol=1e-12, atol=0)


def test_without_history_it_is_steepest_descent_of_length_one() -> None:
    values = torch.tensor([0.0, 100.0, 0.0, 0.0], dtype=torch.float64)
    LBFGS(history=5).step(values, quadratic)
    assert values.tolist() == [0, 99, 0, 0]


@pytest.mark.parametrize(
    ("function", "start", "steps"), [(quadratic, [5.0] * 4, 25), (rosenbrock, [-1.2, 1.0], 60)]
)
def test_it_ends_in_the_minimum_and_never_goes_up(function, start: list[float], steps: int) -> None:
    values = torch.tensor(start, dtype=torch.float64)
    solver = LBFGS(history=10)
    losses = [solver.step(values, function) for _ in range(steps)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(losses))
    assert function(values)[0] < 1e-10


def test_where_no_trial_is_good_the_values_stay() -> None:
    values = torch.tensor([1.0, 2.0], dtype=torch.float64)

    def cliff(at: Tensor) -> tuple[float, Tensor]:
        return (1.0 if at.tolist() == [1, 2] else math.nan), torch.ones(2, dtype=torch.float64)

    assert LBFGS(history=3).step(values, cliff) == 1
    assert values.tolist() == [1, 2]
