"""The sums of classification, worked by hand, and whatever form a model's outputs have."""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from src.config import ConfigError
from src.tasks.torch.classification import Classification
from src.tasks.torch.outputs import model_outputs
from tests.support import config

TASK = Classification(classes=2, shape=(8, 8, 1), options={})
# Probabilities 3/4, 1/4; 1/2, 1/2; 1/5, 4/5.
LOGITS = torch.tensor([[math.log(3), 0], [0, 0], [0, math.log(4)]], dtype=torch.float64)
LABELS = torch.tensor([0, 1, 0])
LOSSES = [math.log(4 / 3), math.log(2), math.log(5)]


def test_sums_of_samples_are_the_sums_of_their_parts() -> None:
    assert TASK.loss((LOGITS,), (LABELS,)).item() == pytest.approx(sum(LOSSES))
    # Of equal logits the first class is the answer.
    assert TASK.score((LOGITS,), (LABELS,)).tolist() == [1]
    parts = [slice(0, 1), slice(1, 3)]
    assert [TASK.loss((LOGITS[p],), (LABELS[p],)).item() for p in parts] == pytest.approx(
        [LOSSES[0], LOSSES[1] + LOSSES[2]]
    )
    assert TASK.metrics({"correct": 1.0}, 3) == {"accuracy": 1 / 3}


@pytest.mark.parametrize("penalty", [torch.tensor(7.0), torch.ones(2), torch.ones(3, 1)])
def test_a_penalty_is_one_of_each_sample(penalty: Tensor) -> None:
    with pytest.raises(
        ConfigError, match=r"must have one number for each sample, \[3\] here; of one for all"
    ):
        TASK.loss((LOGITS, penalty), (LABELS,))


def test_a_penalty_is_a_part_of_the_loss() -> None:
    penalty = torch.tensor([1.0, 2.0, 4.0])
    assert TASK.loss((LOGITS, penalty), (LABELS,)).item() == pytest.approx(sum(LOSSES) + 7)


ONE, TWO = torch.zeros(2, 3), torch.ones(2)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (ONE, [ONE]),
        ((ONE, TWO), [ONE, TWO]),
        ([ONE, (TWO,)], [ONE, TWO]),
        ({"scores": ONE, "links": TWO}, [ONE, TWO]),
        ({"hidden": TWO, "logits": ONE}, [ONE]),
        ({"penalty": TWO, "logits": ONE}, [ONE, TWO]),
        (OrderedDict(loss=None, logits=ONE), [ONE]),
        (SimpleNamespace(logits=ONE, hidden_states=(TWO,)), [ONE]),
    ],
)
def test_outputs_are_found_in_whatever_holds_them(returned: object, expected: list[Tensor]) -> None:
    found = model_outputs(returned)
    assert [id(each) for each in found] == [id(each) for each in expected]


def test_a_model_that_returns_no_tensor_is_told_so() -> None:
    with pytest.raises(TypeError, match="the model returned dict, which holds no tensor"):
        model_outputs({"scores": 1.0})


THREE = torch.zeros(2, 5)
Pair = namedtuple("Pair", ["features", "answers"])


@pytest.mark.parametrize(
    ("returned", "output", "expected"),
    [
        (ONE, None, [ONE]),
        ((ONE, THREE), None, [ONE]),
        ([[ONE, TWO], THREE], None, [ONE]),
        ((THREE, ONE), 1, [ONE]),
        (Pair(THREE, ONE), "answers", [ONE]),
        ({"scores": ONE}, None, [ONE]),
        ({"features": THREE, "logits": ONE}, None, [ONE]),
        ({"features": THREE, "scores": ONE}, "scores", [ONE]),
        ({"penalty": TWO, "logits": ONE}, None, [ONE, TWO]),
        (SimpleNamespace(logits=ONE, hidden=THREE), None, [ONE]),
    ],
)
def test_one_output_is_the_logits(returned: object, output: str | int | None, expected: list[Tensor]) -> None:
    task = Classification(classes=2, shape=(8, 8, 1), options={"output": output})
    assert [id(each) for each in task.outputs(returned)] == [id(each) for each in expected]


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (None, "the model returns features, scores; choose the logits by task.output=features"),
        ("scorse", "task.output=scorse: the model returns features, scores; choose"),
    ],
)
def test_outputs_that_cannot_be_told_apart_are_refused(output: str | None, told: str) -> None:
    task = Classification(classes=2, shape=(8, 8, 1), options={"output": output})
    with pytest.raises(ConfigError, match=told):
        task.outputs({"features": THREE, "scores": ONE})


@pytest.mark.parametrize(("typed", "output"), [("scores", "scores"), ("1", 1), ("null", None)])
def test_an_output_is_typed_by_its_name_or_number(typed: str, output: str | int | None) -> None:
    assert config(f"task.output={typed}").task["output"] == output
