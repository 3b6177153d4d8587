"""Send the largest elements of a gradient alone: deep gradient compression (Lin 2018, algorithm 4).

What isn't sent is kept, and added to later gradients until it is large enough. Momentum is accumulated here,
before elements are chosen (section 3.2, "momentum correction"), since that of the optimizer would forget what
waits: the optimizer has none. Where an element is sent, its momentum is forgotten ("momentum factor
masking"). With gradient g of a rank, momentum m and the elements S of a step:

    u <- m u + g;    v <- v + u;    send v in S;    u, v <- 0 in S

S are, of each tensor, so many elements of the largest |v|. The paper's schedule of ever fewer elements in the
first epochs, and its clipping of each rank's gradient, are left out.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
import torch.distributed as dist
from torch import Tensor


class TopK:
    """The memory of one rank, and the choice of what it sends.

    The attribute `ratio` is the share of each tensor's elements that is sent, at least one.
    """

    def __init__(self, ratio: float, momentum: float) -> None:
        """Remember nothing yet."""
        self.ratio = ratio
        self._momentum = momentum
        self._velocity: dict[Hashable, Tensor] = {}
        self._rest: dict[Hashable, Tensor] = {}

    def count(self, elements: int) -> int:
        """Return how many of so many elements are sent."""
        return max(1, round(self.ratio * elements))

    @torch.no_grad()
    def choose(self, name: Hashable, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Add a gradient to what is kept of the tensor `name`; return what is to be sent of the sum.

        Args:
            name: tells the tensor from others.
            gradient: this rank's, flat [elements].

        Returns:
            The indices [count] (int64) and values [count] of the largest elements, which are kept no longer.
        """
        if name not in self._rest:
            self._velocity[name], self._rest[name] = torch.zeros_like(gradient), torch.zeros_like(gradient)
        velocity, rest = self._velocity[name], self._rest[name]
        rest.add_(velocity.mul_(self._momentum).add_(gradient))
        indices = rest.abs().topk(self.count(len(rest)), sorted=False).indices
        values = rest[indices]
        rest[indices] = velocity[indices] = 0
        return indices, values


class TopKHook:
    """A communication hook of DDP's that averages what all ranks choose of a bucket's gradients."""

    def __init__(self, group: dist.ProcessGroup, chosen: TopK) -> None:
        """Average over `group` what `chosen`, this rank's memory, chooses."""
        self._group = group
        self._chosen = chosen

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Begin to average one bucket; return a future of the averaged gradients.

        Each rank sends as many elements as the others: 4 bytes of index, and the value.
        """
        buffer = bucket.buffer()
        indices, values, offset = [], [], 0
        # DDP forms its buckets anew after the first step: what is kept is kept by parameter.
        for parameter in bucket.parameters():
            end = offset + parameter.numel()
            places, elements = self._chosen.choose(parameter, buffer[offset:end])
            indices.append(places + offset)
            values.append(elements)
            offset = end
        own = torch.cat([torch.cat(indices).int().view(torch.uint8), torch.cat(values).view(torch.uint8)])
        every = [torch.empty_like(own) for _ in range(self._group.size())]
        count = sum(len(places) for places in indices)

        def add_up(_: object) -> Tensor:
            buffer.zero_()
            for sent in every:
                places, elements = sent[: 4 * count].view(torch.int32), sent[4 * count :].view(buffer.dtype)
                buffer.index_add_(0, places, elements)
            return buffer.div_(len(every))

        work = dist.all_gather(every, own, group=self._group, async_op=True)
        future: torch.futures.Future[Tensor] = work.get_future().then(add_up)
        return future
