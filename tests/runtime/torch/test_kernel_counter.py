"""What operations ask of a device is counted by hand: products, bytes moved, exchanges."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from src.compat.torch import TensorsWithoutData, group_that_sends_nothing
from src.measure.kernels import CONVOLUTION, SMALL_CONVOLUTION, UPDATE, WAIT, Kernel, Mark, Trace
from src.runtime.torch.kernel_counter import KernelCounter


def counted(run: Callable[[KernelCounter], None], *, waits: bool = True) -> Trace:
    fake = TensorsWithoutData(allow_non_fake_inputs=True)
    counter = KernelCounter(fake, waits=waits)
    with fake, counter:
        run(counter)
    return counter.trace()


def kernels(trace: Trace) -> list[Kernel]:
    return [Kernel(*row) for row in trace.kernels.values.tolist()]


def test_a_linear_layer_s_step() -> None:
    # 5 samples of 3 features to 7: products forward, for inputs and for weights, and the bias's sum.
    def run(counter: KernelCounter) -> None:
        layer, inputs = nn.Linear(3, 7), torch.empty(5, 3, requires_grad=True)
        counter.begin()
        layer(inputs).backward(torch.empty(5, 7))

    found = [each for each in kernels(counted(run)) if each.rows]
    assert [(each.rows, each.inner, each.columns, each.products) for each in found] == [
        (5, 3, 7, 1),
        (5, 7, 3, 1),
        (7, 5, 3, 1),
    ]
    assert [each.moved for each in found] == [4 * (15 + 21 + 35)] * 3


def test_an_update_moves_each_weight_as_often_as_its_operations_say() -> None:
    size = 1000

    def run(counter: KernelCounter) -> None:
        weights = [nn.Parameter(torch.empty(size)) for _ in range(4)]
        optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9, foreach=True)
        for each in weights:
            each.grad = torch.empty(size)
        optimizer.step()
        counter.begin()
        counter.update()
        optimizer.step()

    trace = counted(run)
    assert trace.marks == (Mark(0, UPDATE),)
    # The momentum is scaled (one read, one written), gradients are added to it (two read), it to the weights.
    assert sum(each.memory for each in kernels(trace)) == 4 * 4 * size * (2 + 3 + 3)
    assert len(kernels(trace)) == 3


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_convolution_is_the_product_of_its_patches(channels_last: bool) -> None:
    layout = torch.channels_last if channels_last else torch.contiguous_format

    def run(counter: KernelCounter) -> None:
        layer = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False)
        inputs = torch.empty(2, 8, 10, 10).to(memory_format=layout).requires_grad_()
        counter.begin()
        layer(inputs).sum().backward()

    forward, for_inputs, for_weights = [each for each in kernels(counted(run)) if each.rows]
    # Of 2 x 5 x 5 patches of 9 x 8 values; a quarter of the products with pixels between them are of zeros.
    assert forward[:4] == (50, 72, 16, 1)
    assert for_inputs[:4] == (200, 9 * 16 / 4, 8, 1)
    assert for_weights[:4] == (16, 50, 72, 1)
    assert {each.kind for each in (forward, for_inputs, for_weights)} == {CONVOLUTION}
    assert forward.relaid == (0 if channels_last else 2 * 4 * (1600 + 800))


def test_kernels_of_3x3_and_single_channels_are_told_apart() -> None:
    def run(counter: KernelCounter) -> None:
        same, single = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        counter.begin()
        single(same(torch.empty(1, 8, 4, 4)))

    product, alone = kernels(counted(run))
    assert product.kind == SMALL_CONVOLUTION
    assert not alone.rows and alone.memory == 4 * (128 + 72 + 128)


def test_attention_is_fused_and_sees_half_of_all_where_it_is_causal() -> None:
    def run(counter: KernelCounter) -> None:
        heads = [torch.empty(2, 4, 16, 8) for _ in range(3)]
        counter.begin()
        functional.scaled_dot_product_attention(*heads)
        functional.scaled_dot_product_attention(*heads, is_causal=True)

    whole, half = [each.attention for each in kernels(counted(run)) if each.attention]
    # Scores of 2 x 4 heads, 16 x 16 each, by 8 features, twice.
    assert whole == 2 * half == 2 * 2 * 4 * 16 * 16 * 8 * 2


def test_what_is_looked_up_reads_no_more_than_it_returns_and_views_cost_nothing() -> None:
    def run(counter: KernelCounter) -> None:
        table, numbers = nn.Embedding(1000, 8), torch.zeros(4, dtype=torch.long)
        counter.begin()
        found: Tensor = table(numbers)
        found.view(8, 4).t()[1:].unsqueeze(0)
        torch.zeros_like(found)

    looked_up, zeros = kernels(counted(run))
    assert (looked_up.memory, zeros.memory) == (2 * 4 * 32, 4 * 32)


def test_exchanges_have_the_whole_tensor_s_bytes() -> None:
    def run(_: KernelCounter) -> None:
        own = torch.empty(16)
        dist.all_reduce(own)
        whole = torch.empty(64)
        dist.all_gather_into_tensor(whole, own)

    with group_that_sends_nothing(4):
        found = counted(run).marks
    assert [(mark.kind, mark.size, mark.ranks, mark.stride) for mark in found if mark.kind != WAIT] == [
        ("all_reduce", 64, 4, 1),
        ("all_gather", 256, 4, 1),
    ]
    assert [mark.call for mark in found] == [1, 1, 2, 2]
