"""Train a model whose layers ranks hold in parts under Lightning."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from pytorch_lightning.strategies import Strategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from src.measure.live_step import LiveBytes
from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch import checkpoint, copies, dry_run, setup, shards
from src.runtime.torch import mesh as axes
from src.runtime.torch.checkpoint import RankState
from src.runtime.torch.kernel_counter import KernelCounter
from src.runtime.torch.lightning.module import TrainingModule
from src.runtime.torch.tensor import division, plan
from src.runtime.torch.tensor.group import MeshTensorGroup


class TensorModule(TrainingModule):
    """A model under Lightning, of whose split layers each rank has its part.

    The ranks of one copy see the same samples.
    """

    def __init__(
        self, context: RankContext, recorder: Recorder, mesh: DeviceMesh, device: torch.device
    ) -> None:
        """Build the whole model on `device`, look at it, and keep this rank's parts of its layers.

        Args:
            context: the rank's context.
            recorder: the rank's recorder.
            mesh: of the run.
            device: the rank's device.

        Raises:
            ConfigError: where there is no plan of the model, or the split model computes something else.
        """
        model = setup.build(context).to(device)
        whole_facts = setup.facts(context, model, device)
        self._group, self._plan, shown = division.divide(context, model, mesh, recorder, device)
        recorder.note(shown)
        super().__init__(context, model)
        self.whole_facts = whole_facts
        self._mesh, self._recorder = mesh, recorder
        self._parts, self._copies = axes.axis(mesh, division.AXIS), axes.axis(mesh, "data")
        setup.release()

    @property
    def _counts(self) -> bool:
        """Return whether this rank speaks for all that compute the same."""
        return self._group.rank == 0

    def take_sums(self) -> Tensor:
        """Return `sums` on the first rank, and zeros on others; begin them anew."""
        sums = super().take_sums()
        return sums if self._counts else torch.zeros_like(sums)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Average the gradients over copies, and clip the whole model's if configured.

        Its norm is that of the ranks' parts, and of what all have once.
        """
        self._settle([*self.parameters()])

    def _settle(self, parameters: Sequence[Tensor]) -> None:
        if self._copies.size > 1:
            gradients = [shards.local(each.grad) for each in parameters if each.grad is not None]
            bucket_bytes = self.context.config.strategy["bucket_mb"] * 2**20
            copies.average(gradients, self._copies, self._recorder, bucket_bytes)
        if (limit := self.context.config.optimizer["clip_norm"]) is not None:
            shards.clip(
                parameters,
                limit,
                self._sum_over_ranks,
                lambda parameter: self._counts or shards.is_split(parameter),
            )

    def _sum_over_ranks(self, squares: Tensor) -> Tensor:
        squares = squares.to(self.device)
        with self._recorder.exchanging():
            dist.all_reduce(squares, group=self._parts.group)
        return squares

    def predicted_memory(self, strategy: Strategy, device: torch.device) -> LiveBytes:
        """Predict the live tensors of a step on `device`, by a dry run."""

        def divide(model: nn.Module, _: KernelCounter) -> tuple[nn.Module, Callable[[], None]]:
            group = MeshTensorGroup(self._mesh[division.AXIS], self._recorder)
            # Nothing is drawn of tensors without data: generators are left alone.
            group.region.watches = False
            plan.parallelize(model, self._plan, group)
            return model, lambda: self._settle([*model.parameters()])

        return dry_run.look(self.context, self.task, device, divide).live

    def evaluate(self, device: torch.device) -> Tensor:
        """Score this copy's part of the test set, as its ranks do together.

        Return the sums on the first of them, and zeros on others.
        """
        found = super().evaluate(device)
        return found if self._counts else torch.zeros_like(found)

    def rank_states(self, optimizer: torch.optim.Optimizer) -> list[RankState] | None:
        """Gather the whole model's tensors on rank 0, one at a time; return `None` on others."""
        first = self.context.rank == 0
        state = checkpoint.gathered_state(self.model, optimizer, self.context.folder, keeps=first)
        return [checkpoint.complete([state], self.tied, self.unstaged)] if first else None
