"""Synchronise BatchNorm: normalise by the statistics of all ranks' micro-batches together, on CPUs too.

torch's SyncBatchNorm refuses CPU tensors. The layer here computes the same by all-reduce.
"""

from __future__ import annotations

from collections import Counter

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from src.compat.torch import BatchNorm, has_hooks
from src.config import ConfigError


class CPUSyncBatchNorm(BatchNorm):
    """A BatchNorm by mean and variance over all ranks' samples."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, got {input.dim()}")

    def forward(self, input: Tensor) -> Tensor:
        """Normalise `input` [batch, channels, ...] by channel, in evaluation by the running statistics.

        Statistics are computed in fp32 at least, as torch's own layers do under autocast: in bf16 256 + 1
        is 256, and running statistics are fp32. The result has the type of `input`.
        """
        if not self.training or dist.get_world_size() == 1:
            return super().forward(input)
        others = [dim for dim in range(input.dim()) if dim != 1]
        shape = [1, -1] + [1] * (input.dim() - 2)
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        # Ranks may have other numbers of samples, or of what is left of them.
        own = wide.new_full((1,), input.numel() // input.shape[1])
        total = all_reduce(torch.cat([wide.sum(others), own]))
        count = total[-1].detach()
        mean = total[:-1] / count
        # Two passes: E[x^2] - E[x]^2 cancels in fp32.
        centred = wide - mean.view(shape)
        variance = all_reduce((centred * centred).sum(others)) / count
        self._move_running(mean.detach(), variance.detach() * count / (count - 1))
        normal = centred * torch.rsqrt(variance + self.eps).view(shape)
        if not self.affine:
            return normal.to(input.dtype)
        scaled = normal * self.weight.view(shape)
        # Newer versions of torch may leave the bias out.
        return (scaled if self.bias is None else scaled + self.bias.view(shape)).to(input.dtype)

    def _move_running(self, mean: Tensor, variance: Tensor) -> None:
        if not self.track_running_stats:
            return
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None and self.running_var is not None
        self.num_batches_tracked += 1
        rate = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, rate)
        self.running_var.lerp_(variance, rate)


def check(model: nn.Module) -> None:
    """Raise `ConfigError` where a BatchNorm of a model can't be replaced by one that is synchronised."""
    children = [child for parent in model.modules() for child in vars(parent)["_modules"].values()]
    places = Counter(map(id, children))
    for name, layer in model.named_modules():
        if not isinstance(layer, BatchNorm):
            continue
        own, why = dict(layer.named_parameters(recurse=False)), ""
        if type(layer).forward is not BatchNorm.forward:
            why = f"is a {type(layer).__name__} with a forward pass of its own"
        elif has_hooks(layer):
            why = "has hooks"
        elif places[id(layer)] > 1:
            why = "has several names"
        elif layer.affine and "weight" not in own:
            why = "has a parametrized weight"
        if why:
            raise ConfigError(
                f"batchnorm=sync: the model's {name} {why}, and can't be replaced by a layer that is "
                "synchronised; choose batchnorm=local"
            )


def convert(model: nn.Module) -> nn.Module:
    """Replace every BatchNorm of `model` by a synchronised one, in place, and return the model.

    The layers are torch's own where there are GPUs, and `CPUSyncBatchNorm` elsewhere; parameters and buffers
    stay the same ones.

    Raises:
        ConfigError: as `check` does.
    """
    check(model)
    if torch.cuda.is_available():
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, BatchNorm):
            twin = CPUSyncBatchNorm(
                layer.num_features, layer.eps, layer.momentum, affine=False, track_running_stats=False
            )
            twin.affine, twin.track_running_stats = layer.affine, layer.track_running_stats
            twin.weight, twin.bias = layer.weight, layer.bias
            for buffer, value in layer.named_buffers(recurse=False):
                twin.register_buffer(buffer, value)
            # An author may have frozen the layer.
            twin.training = layer.training
            setattr(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], twin)
    return model
