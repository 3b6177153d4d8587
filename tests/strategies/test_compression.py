"""A compressing strategy computes its own rule: ten float64 steps against that rule in one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from src.config import Config
from src.data.batches import training_batches
from src.runtime.common.batch_split import BatchSplit
from src.runtime.common.context import RankContext
from src.runtime.torch import update_rule
from src.runtime.torch.compression.hooks import EPSILON, POWERSGD_START
from src.runtime.torch.parameter_server.replica import Replica
from tests.prepared_data import load_arrays
from tests.strategies import parity
from tests.strategies.parity import BOUND, CNN, MLP, STEPS, Case, Outcome
from tests.support import config

WORKERS = 2
TWO = f"workers={WORKERS}"
SERVED = ("strategy=parameter_server", TWO)
LOCAL = ("strategy=local_sgd", TWO, "strategy.sync_every=3", *CNN)
TOPK = ("strategy.compression=topk", "strategy.compression_ratio=0.05")
# A rule of its own each; CNN's tensors are many, and MLP's fit one bucket, in which PowerSGD draws in order.
RULES = {
    "fp16": ("strategy.compression=fp16", *CNN),
    "bf16": ("strategy.compression=bf16", *CNN),
    "topk": (*TOPK, *CNN),
    "powersgd": ("strategy.compression=powersgd", "strategy.compression_rank=2", *MLP),
}
OUTER = {
    "none": LOCAL,
    "slowmo": (*LOCAL, "strategy.outer=slowmo"),
    "diloco": (*LOCAL, "strategy.outer=diloco", "strategy.outer_momentum=0.8"),
}
PAIR = (
    *(Case(f"ddp-{name}", ("strategy=ddp", TWO, *words)) for name, words in RULES.items()),
    *(Case(f"local-{name}", words) for name, words in OUTER.items()),
)
MPIEXEC = tuple(Case(f"mpi-{name}", ("strategy=mpi", TWO, *words)) for name, words in RULES.items())
PUSHES = tuple(
    Case(f"served-{name}", (*SERVED, *RULES[name], f"strategy.servers={servers}"))
    for name, servers in (("fp16", 1), ("bf16", 2), ("topk", 2))
)
JOBS = {"pair": (PAIR, "ddp", 2), "mpiexec": (MPIEXEC, "mpi", 2), "pushes": (PUSHES, "ddp", 1)}
WORDS = {case.name: case.words for cases in (PAIR, MPIEXEC, PUSHES) for case in cases}


def train_cases(folder: Path) -> None:
    parity.train(JOBS, folder)


@pytest.fixture(scope="module")
def trained(cases: Path) -> dict[str, list[Outcome]]:
    return parity.outcomes(JOBS, cases)


@pytest.fixture
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Training:
    """Two ranks' training of one model, in one process and by the words of a case.

    `step` has, of each rank, the gradient of its own mean loss, and returns the parameters of each.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.config: Config = config(*words, f"dataset.limit={STEPS * 32}")
        self.arrays = load_arrays(self.config.dataset)
        core = min(os.sched_getaffinity(0))
        context = RankContext(self.config, 0, WORKERS, self.arrays, Path(), (core,))
        self.replica = Replica(context)
        self.shapes = [parameter.shape for parameter in self.replica.model.parameters()]

    def run(
        self, step: Callable[[list[Tensor], list[Tensor]], list[Tensor]]
    ) -> tuple[list[float], list[Tensor]]:
        """The mean loss of each step, and what both ranks end with."""
        values = [self.replica.parameters()] * WORKERS
        split, losses = BatchSplit(self.config), []
        for batch in training_batches(self.config, self.arrays.train_samples, 0, STEPS):
            gradients, mean = [], 0.0
            for rank in range(WORKERS):
                self.replica.load(values[rank])
                own = batch[split.part(rank)]
                gradient, loss, _ = self.replica.gradient(own, 0, len(batch))
                gradients.append(gradient * WORKERS)
                mean += loss / WORKERS
            losses.append(mean)
            values = step(values, gradients)
        return losses, values

    def optimizer(self, values: Tensor, **changed: float) -> torch.optim.Optimizer:
        return update_rule.make_optimizer({**self.config.optimizer, **changed}, [values])

    def averaging(
        self, average: Callable[[list[Tensor]], Tensor], **changed: float
    ) -> Callable[[list[Tensor], list[Tensor]], list[Tensor]]:
        """The step of ranks that hold one model, by the gradient that `average` makes of theirs."""
        common = self.replica.parameters()
        optimizer = self.optimizer(common, **changed)

        def step(_: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
            common.grad = average(gradients)
            optimizer.step()
            return [common] * WORKERS

        return step

    def tensors(self, flat: Tensor) -> list[Tensor]:
        """The parts of a vector, by the model's tensors."""
        return list(flat.split([shape.numel() for shape in self.shapes]))


def half(kind: torch.dtype) -> Callable[[list[Tensor]], Tensor]:
    """Each rank's part of the mean is rounded, and so is their sum."""

    def average(gradients: list[Tensor]) -> Tensor:
        first, second = ((gradient.to(kind) / WORKERS) for gradient in gradients)
        return (first + second).double()

    return average


class Largest:
    """Lin 2018, algorithm 4, of one rank."""

    def __init__(self, ratio: float, momentum: float, *, keeps: bool = True) -> None:
        self.ratio, self.momentum, self.keeps = ratio, momentum, keeps
        self.velocity: list[Tensor] = []
        self.rest: list[Tensor] = []

    def __call__(self, tensors: list[Tensor]) -> list[Tensor]:
        self.velocity = self.velocity or [torch.zeros_like(each) for each in tensors]
        self.rest = self.rest or [torch.zeros_like(each) for each in tensors]
        sent = []
        for number, gradient in enumerate(tensors):
            velocity = self.momentum * self.velocity[number] + gradient
            whole = self.rest[number] + velocity
            count = max(1, round(self.ratio * len(whole)))
            least = whole.abs().sort(descending=True).values[count - 1]
            chosen = whole.abs() >= least
            sent.append(torch.where(chosen, whole, 0.0))
            self.velocity[number] = torch.where(chosen, 0.0, velocity)
            self.rest[number] = torch.where(chosen, 0.0, whole) if self.keeps else torch.zeros_like(whole)
        return sent


def largest(
    training: Training, *, keeps: bool = True, whole: bool = False
) -> Callable[[list[Tensor]], Tensor]:
    """The mean of what each rank chooses: of each tensor, or of the `whole` vector."""
    momentum = training.config.optimizer["momentum"]
    memories = [Largest(0.05, momentum, keeps=keeps) for _ in range(WORKERS)]

    def average(gradients: list[Tensor]) -> Tensor:
        sent = [
            torch.cat(memory([gradient] if whole else training.tensors(gradient)))
            for memory, gradient in zip(memories, gradients, strict=True)
        ]
        return (sent[0] + sent[1]) / WORKERS

    return average


def orthogonal(matrix: Tensor) -> Tensor:
    """Gram and Schmidt's columns."""
    columns: list[Tensor] = []
    for column in matrix.T:
        for earlier in columns:
            column = column - (earlier @ column) * earlier
        columns.append(column / (column.norm() + EPSILON))
    return torch.stack(columns, 1)


def low_rank(training: Training, *, keeps: bool = True) -> Callable[[list[Tensor]], Tensor]:
    """Vogels 2019, algorithms 1 and 2: M is P Q^T of rank 2; what that lacks of it is added next time."""
    draw = np.random.RandomState(training.config.seed).randint(1_000_000_000)
    matrices = [number for number, shape in enumerate(training.shapes) if len(shape) > 1]
    factors: dict[int, Tensor] = {}
    errors = [[torch.zeros(shape.numel()) for shape in training.shapes] for _ in range(WORKERS)]
    steps = 0

    def average(gradients: list[Tensor]) -> Tensor:
        nonlocal steps
        steps += 1
        parts = [training.tensors(gradient) for gradient in gradients]
        means = [sum(each) / WORKERS for each in zip(*parts, strict=True)]
        if steps <= POWERSGD_START:
            return torch.cat(means)
        if not factors:
            torch.manual_seed(draw)
            # The last layer's gradient is there first.
            for number in reversed(matrices):
                factors[number] = torch.randn(training.shapes[number][1], 2)
        for number in matrices:
            shape = training.shapes[number]
            owns = [parts[rank][number] + errors[rank][number] for rank in range(WORKERS)]
            given = [own.view(shape) for own in owns]
            left = orthogonal(sum(each @ orthogonal(factors[number]) for each in given))
            factors[number] = sum(each.T @ left for each in given) / WORKERS
            means[number] = (left @ factors[number].T).reshape(-1)
            for rank in range(WORKERS) if keeps else ():
                errors[rank][number] = owns[rank] - means[number]
        return torch.cat(means)

    return average


def local(training: Training, outer: str) -> Callable[[list[Tensor], list[Tensor]], list[Tensor]]:
    """Ranks that train on their own, and go on from an outer optimizer's step every third one."""
    owns = [training.replica.parameters() for _ in range(WORKERS)]
    optimizers = [training.optimizer(own) for own in owns]
    start = owns[0].clone()
    velocity = torch.zeros_like(start)
    rate = training.config.optimizer["lr"]
    steps = 0

    def step(_: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        nonlocal steps, velocity, start
        steps += 1
        for own, optimizer, gradient in zip(owns, optimizers, gradients, strict=True):
            own.grad = gradient
            optimizer.step()
        if steps % 3 == 0:
            mean = (owns[0] + owns[1]) / WORKERS
            if outer == "none":
                start = mean
            elif outer == "slowmo":
                velocity = 0.7 * velocity + (start - mean) / rate
                start = start - 1.0 * rate * velocity
            else:
                velocity = 0.8 * velocity + (start - mean)
                start = start - 0.7 * ((start - mean) + 0.8 * velocity)
            for own in owns:
                own.copy_(start)
        return owns

    return step


def expected(name: str, *, keeps: bool = True) -> tuple[list[float], list[Tensor], Training]:
    """The losses and parameters that the rule of a case gives, with or without what ranks keep."""
    training = Training(WORDS[name])
    how, _, rule = name.partition("-")
    if how == "local":
        return *training.run(local(training, rule)), training
    if rule == "powersgd":
        return *training.run(training.averaging(low_rank(training, keeps=keeps))), training
    if rule == "topk":
        chosen = largest(training, keeps=keeps, whole=how == "served")
        return *training.run(training.averaging(chosen, momentum=0.0)), training
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[rule]
    if how == "served":
        # The server adds up in its own precision what was rounded on the way.
        return *training.run(
            training.averaging(lambda gradients: sum((g / WORKERS).to(kind).double() for g in gradients))
        ), training
    return *training.run(training.averaging(half(kind))), training


def gap(outcome: Outcome, losses: Sequence[float], values: Tensor, training: Training) -> dict[str, float]:
    names = [name for name, _ in training.replica.model.named_parameters()]
    parts = zip(names, training.tensors(values), training.shapes, strict=True)
    tensors = {f"parameters/{name}": part.view(shape).numpy() for name, part, shape in parts}
    known = {key: value for key, value in outcome.tensors.items() if key.startswith("parameters/")}
    assert known.keys() == tensors.keys()
    rule = Outcome(np.array(losses), tensors, (0.0, 0.0))
    return parity.gaps(Outcome(outcome.losses, known, (0.0, 0.0)), rule)


@pytest.mark.parametrize("name", list(WORDS))
@pytest.mark.usefixtures("_float64")
def test_losses_and_parameters_are_those_of_the_rule(trained: dict[str, list[Outcome]], name: str) -> None:
    losses, values, training = expected(name)
    for rank, outcome in enumerate(trained[name]):
        found = gap(outcome, losses, values[rank], training)
        assert found["losses"] <= BOUND and found["parameters"] <= BOUND, found


@pytest.mark.parametrize("name", ["ddp-topk", "ddp-powersgd", "served-topk"])
@pytest.mark.usefixtures("_float64")
def test_the_comparison_fails_for_a_rule_that_forgets_what_it_has_not_sent(
    trained: dict[str, list[Outcome]], name: str
) -> None:
    losses, values, training = expected(name, keeps=False)
    found = gap(trained[name][0], losses, values[0], training)
    assert found["losses"] > BOUND and found["parameters"] > BOUND, found


@pytest.mark.parametrize("name", ["fp16", "bf16", "topk", "powersgd"])
def test_both_backends_give_the_same_bits(trained: dict[str, list[Outcome]], name: str) -> None:
    for one, other in zip(trained[f"ddp-{name}"], trained[f"mpi-{name}"], strict=True):
        np.testing.assert_array_equal(one.vector("parameters"), other.vector("parameters"))


def test_each_rule_computes_something_of_its_own(trained: dict[str, list[Outcome]]) -> None:
    cnn = ["ddp-fp16", "ddp-bf16", "ddp-topk", "local-none", "local-slowmo", "local-diloco", "served-topk"]
    ends = [trained[name][0].vector("parameters") for name in cnn]
    for first in range(len(cnn)):
        for second in range(first):
            assert not np.allclose(ends[first], ends[second], rtol=0, atol=1e-12), (cnn[first], cnn[second])
