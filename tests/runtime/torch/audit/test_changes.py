"""What an audit changes in a rank, each in a process of its own, for torch itself is changed."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from src.runtime.torch.audit import changes
from tests.support import ROOT, config

DRAWS = """
import random
import numpy as np
import torch
from torch.nn import functional
from src.runtime.torch.audit import changes
from tests.runtime.torch.audit.test_changes import changed
changes.enter(changed(%r))
"""


def changed(*named: str):
    """The configuration of an audited run with these changes."""
    audit = {"precision": "own", "steps": 10, "changes": list(named), "alike": 1, "enter": None}
    return dataclasses.replace(config("strategy=single"), audit=audit)


def evaluate(change: str, expression: str) -> str:
    """What an expression is in a process that an audit changes so."""
    command = [sys.executable, "-c", DRAWS % change + f"print({expression})"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_nothing_is_dropped() -> None:
    heads = "torch.ones(1, 2, 3, 4)"
    attention = f"functional.scaled_dot_product_attention({heads}, {heads}, {heads}"
    same = [f"torch.equal({attention}, {how}), {heads})" for how in ("None, 0.9", "dropout_p=0.9")]
    dropped = "torch.equal(functional.dropout(torch.ones(99), 0.9), torch.ones(99))"
    assert evaluate(changes.DROPOUT_OFF, f"all([{', '.join([dropped, *same])}])") == "True"


def test_draws_are_their_averages_but_for_a_model_that_is_built() -> None:
    constants = {
        "torch.rand(2).tolist()": [0.5, 0.5],
        "torch.rand((2,)).tolist()": [0.5, 0.5],
        "torch.randn(1, 2, dtype=torch.float64).tolist()": [[0.0, 0.0]],
        "torch.randn_like(torch.ones(2)).tolist()": [0.0, 0.0],
        "torch.randint(0, 10, (2,)).tolist()": [5, 5],
        "torch.randint(10, (1,)).tolist()": [5],
        "torch.randperm(3).tolist()": [0, 1, 2],
        "torch.bernoulli(torch.full((2,), 0.25)).tolist()": [0.25, 0.25],
        "torch.zeros(2).bernoulli_(0.75).tolist()": [0.75, 0.75],
        "torch.zeros(2).uniform_(1, 3).tolist()": [2.0, 2.0],
        "torch.zeros(2).normal_(4, 1).tolist()": [4.0, 4.0],
    }
    assert evaluate(changes.CONSTANT_DRAWS, f"[{', '.join(constants)}]") == str(list(constants.values()))
    built = "(lambda c: (c.__enter__(), float(torch.randn(99).std()) > 0.1)[1])(changes.building())"
    assert evaluate(changes.CONSTANT_DRAWS, built) == "True"


def test_own_generators_draw_alike_whatever_their_seeds() -> None:
    made = "[np.random.default_rng(%d), np.random.RandomState(%d), random.Random(%d), torch.Generator()]"
    draw = "(lambda g: (changes.reseed(3), g[0].random(), g[1].rand(), g[2].random(), {})[1:])"
    draw = draw.format("float(torch.rand((), generator=g[3]))")
    equal = f"{draw}({made % (1, 1, 1)}) == {draw}({made % (2, 2, 2)})"
    assert evaluate(changes.SAME_GENERATORS, equal) == "True"
    # What Python and NumPy hold already are still of these kinds.
    known = ("np.random.mtrand._rand, np.random.RandomState", "random._inst, random.Random")
    kinds = " and ".join(f"isinstance({each})" for each in known)
    assert evaluate(changes.SAME_GENERATORS, kinds) == "True"


class Moving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.norm, self.calls, self.history = nn.BatchNorm1d(2), 0, [1]

    def forward(self, images: Tensor) -> Tensor:
        self.seen += 1
        self.calls += 1
        self.history.append(2)
        self.late = 5
        return self.norm(images) * self.seen


@pytest.mark.parametrize("named", [(), (changes.UNDO_STATE,)])
def test_what_forward_changes_is_put_back_where_that_is_asked_for(named: tuple[str, ...]) -> None:
    model, images = Moving(), torch.randn(4, 2, requires_grad=True)
    buffer = model.seen
    with changes.state_kept(changed(*named), model):
        # A backward pass needs the buffer that it went forward with.
        model(images).sum().backward()
    kept = bool(named)
    assert (float(model.seen), model.calls, len(model.history)) == ((0, 0, 1) if kept else (1, 1, 2))
    assert hasattr(model, "late") is not kept and model.seen is buffer
    # BatchNorm's own statistics are no part of that.
    assert int(model.norm.num_batches_tracked) == 1


def test_batchnorm_is_frozen_and_dropout_off_by_their_types() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5), nn.LSTM(2, 2, 2, dropout=0.5), nn.Linear(2, 2))
    changes.apply(changed(changes.FREEZE_BATCHNORM, changes.DROPOUT_OFF), model)
    assert [layer.training for layer in model] == [False, True, True, True]
    assert model[1].p == 0 and model[2].dropout == 0


def test_an_optimizer_gets_gradients_of_zeros_for_those_that_have_none() -> None:
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    weights[0].grad = torch.ones(2)
    changes.fill_gradients(torch.optim.SGD(weights, 0.1))
    assert [float(each.grad.sum()) for each in weights] == [2.0, 0.0]
