"""One of two ranks: a synchronised BatchNorm on its half is BatchNorm on the union.

python -m tests.runtime.torch.sync_batchnorm_rank      with a launcher's environment variables
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import Tensor, nn

from src.runtime.torch.lightning.sync_batchnorm import CPUSyncBatchNorm, convert
from tests.runtime.torch.agreed import leave

STEPS = 3
# One rounding to bf16 is 2^-9 of a number; statistics and gradients of weights are fp32 there, too.
BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 2**-7}


def check(
    layer: nn.Module,
    shape: tuple[int, ...],
    offset: float = 0.0,
    kind: torch.dtype | None = None,
    *,
    more: int = 0,
) -> None:
    """Outputs, gradients and buffers over some steps, then evaluation; `shape` is one rank's input.

    `kind` is the input's type, where that isn't the layer's; the second rank has so many `more` samples.
    """
    reference, synchronised = layer, convert(nn.Sequential(copy.deepcopy(layer)))[0]
    assert isinstance(synchronised, CPUSyncBatchNorm)
    half = shape[0]
    own_rows = slice(0, half - more) if dist.get_rank() == 0 else slice(half - more, 2 * half)
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        # The second half differs in mean and spread, or local statistics would almost do.
        halves = (
            torch.randn(half, *shape[1:], generator=generator),
            torch.randn(half, *shape[1:], generator=generator),
        )
        union = (torch.cat([halves[0], halves[1] * 3 + 1]) + offset).to(kind)
        weights = torch.randn(union.shape, generator=generator).to(kind)
        whole, part = union.clone().requires_grad_(), union[own_rows].clone().requires_grad_()
        reference.zero_grad()
        synchronised.zero_grad()
        expected, outputs = reference(whole), synchronised(part)
        assert outputs.dtype == union.dtype
        same(outputs, expected[own_rows], "outputs")
        (expected * weights).sum().backward()
        (outputs * weights[own_rows]).sum().backward()
        same(part.grad, whole.grad[own_rows], "input gradients")
        for name, parameter in reference.named_parameters():
            # The loss is a sum over all samples: its gradient is the sum of the ranks'.
            dist.all_reduce(gradient := synchronised.get_parameter(name).grad)
            same(gradient, parameter.grad, f"gradient of {name}")
        for name, buffer in reference.named_buffers():
            same(synchronised.get_buffer(name), buffer, name)
    if layer.track_running_stats:
        same(synchronised.eval()(union[own_rows]), reference.eval()(union)[own_rows], "outputs in evaluation")


def same(actual: Tensor, expected: Tensor, what: str) -> None:
    # Naive variances of the fp32 case are wrong by 6e-4.
    bound = BOUNDS.get(actual.dtype, 0.0)
    bounds = {"rtol": bound, "atol": bound}
    torch.testing.assert_close(actual, expected, **bounds, msg=lambda text: f"{what}: {text}")


def scaled(layer: nn.Module) -> nn.Module:
    """With weights that aren't all one."""
    with torch.no_grad():
        layer.weight.uniform_(0.5, 2, generator=torch.Generator().manual_seed(1))
        layer.bias.uniform_(-1, 1, generator=torch.Generator().manual_seed(2))
    return layer


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_default_dtype(torch.float64)
    check(scaled(nn.BatchNorm2d(3)), (4, 3, 5, 5))
    check(scaled(nn.BatchNorm2d(3, momentum=None)), (4, 3, 5, 5))
    check(scaled(nn.BatchNorm2d(3, eps=1e-2, momentum=0.5)), (1, 3, 1, 1))
    check(nn.BatchNorm2d(3, affine=False), (4, 3, 5, 5))
    check(scaled(nn.BatchNorm2d(3, track_running_stats=False)), (2, 3, 4, 4))
    check(scaled(nn.BatchNorm1d(6)), (8, 6))
    check(scaled(nn.BatchNorm1d(6)), (8, 6), more=3)
    torch.set_default_dtype(torch.float32)
    # A mean of a hundred standard deviations, where E[x^2] - E[x]^2 has few digits left in fp32.
    check(scaled(nn.BatchNorm2d(3)), (16, 3, 8, 8), offset=100.0)
    # What a convolution's output is under autocast: in bf16 the sum of so many is wrong by tenths.
    check(scaled(nn.BatchNorm2d(3)), (16, 3, 16, 16), kind=torch.bfloat16)
    leave()


if __name__ == "__main__":
    main()
