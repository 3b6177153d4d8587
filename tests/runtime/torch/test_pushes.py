"""A push arrives as it was sent, is as long as it is counted, and nothing else passes for one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from src.data import order
from src.runtime.common.messages import Head, WrongMessage
from src.runtime.torch.compression.topk import TopK
from src.runtime.torch.parameter_server import pushes
from tests.support import config

LAYOUT = ("float32", (6,))
GRADIENT = torch.tensor([0.5, -3.0, 0.001, 2.0, 1 / 3, -0.25])


def chosen(compression: str, *words: str) -> object:
    return config("strategy=parameter_server", f"strategy.compression={compression}", *words)


def head(arrays: list[np.ndarray]) -> Head:
    return Head("push", {}, tuple((array.dtype.name, array.shape) for array in arrays))


@pytest.mark.parametrize(
    ("compression", "arrives"),
    [
        ("none", GRADIENT),
        ("fp16", GRADIENT.half().float()),
        ("bf16", GRADIENT.bfloat16().float()),
        # Two of six.
        ("topk", torch.tensor([0.0, -3.0, 0.0, 2.0, 0.0, 0.0])),
    ],
)
def test_two_servers_together_have_what_was_sent(compression: str, arrives: torch.Tensor) -> None:
    run = chosen(compression, "strategy.compression_ratio=0.3333")
    part_of = pushes.compressor(run)(GRADIENT.clone())
    parts, sent = [], 0
    for number in range(2):
        arrays = part_of(order.even_slice(6, number, 2))
        sent += sum(array.nbytes for array in arrays)
        pushes.examine(compression, head(arrays), ("float32", (3,)))
        parts.append(pushes.gradient_of(compression, arrays, ("float32", (3,))))
    torch.testing.assert_close(torch.cat(parts), arrives, rtol=0, atol=0)
    assert pushes.pushed_bytes(run, 6, 4) == sent


def test_what_is_not_pushed_comes_with_a_later_push() -> None:
    memory = TopK(1 / 3, momentum=0.5)
    assert memory.choose("it", torch.tensor([1.0, 3.0, 2.0]))[0].tolist() == [1]
    # 2 was kept, and its momentum, 0.5 * 2, comes to it: 3. Of what was sent nothing is left.
    indices, values = memory.choose("it", torch.tensor([0.0, 1.0, 0.0]))
    assert (indices.tolist(), values.tolist()) == ([2], [3.0])
    # 1 was kept, with momentum 0.5 and then 0.25: 1 + 0.5 + 0.25.
    indices, values = memory.choose("it", torch.tensor([0.0, 0.0, 0.0]))
    assert (indices.tolist(), values.tolist()) == ([0], [1.75])
    assert memory.count(1) == 1, "something is always sent"


@pytest.mark.parametrize(
    ("compression", "arrays"),
    [
        ("none", [np.zeros(5, "float32")]),
        ("none", [np.zeros(6, "float16")]),
        ("fp16", [np.zeros(6, "float32")]),
        ("bf16", [np.zeros(6, "float16")]),
        ("topk", [np.zeros(6, "float32")]),
        ("topk", [np.zeros(2, "int64"), np.zeros(2, "float32")]),
        ("topk", [np.zeros(2, "int32"), np.zeros(3, "float32")]),
        ("topk", [np.zeros(7, "int32"), np.zeros(7, "float32")]),
        ("topk", [np.zeros((2, 1), "int32"), np.zeros((2, 1), "float32")]),
        ("topk", []),
    ],
)
def test_other_arrays_are_refused_by_their_head(compression: str, arrays: list[np.ndarray]) -> None:
    with pytest.raises(WrongMessage, match="push with arrays of"):
        pushes.examine(compression, head(arrays), LAYOUT)


@pytest.mark.parametrize("index", [-1, 6])
def test_an_element_that_is_not_there_is_refused(index: int) -> None:
    arrays = [np.array([0, index], "int32"), np.zeros(2, "float32")]
    pushes.examine("topk", head(arrays), LAYOUT)
    with pytest.raises(WrongMessage, match="elements that aren't there"):
        pushes.gradient_of("topk", arrays, LAYOUT)


def test_momentum_is_the_servers_or_the_workers_and_never_both_s() -> None:
    for words, accumulated in (
        (("none",), 0.0),
        (("topk",), 0.9),
        # Its servers update by Adagrad.
        (("topk", "strategy.mode=downpour"), 0.0),
    ):
        run = chosen(*words)
        assert pushes.accumulated_momentum(run) == accumulated
        served = pushes.without_accumulated(run, run.optimizer)["momentum"]
        assert served == (0.0 if accumulated else 0.9)
