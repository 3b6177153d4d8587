"""Score a LightningModule by the loss of its own validation step."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from src.tasks.torch.task import Task

LOSS = "validation_loss"


class OwnLoss(Task):
    """The loss that a LightningModule's own `validation_step` returns or logs, a mean over samples."""

    sums = (LOSS,)
    scores_training = False

    def loss(self, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        """Refuse to compute a loss, for the module does."""
        raise NotImplementedError("a LightningModule has a loss of its own")

    def metrics(self, sums: Mapping[str, float], samples: int) -> dict[str, float]:
        """Return the mean of the losses."""
        return {LOSS: sums[LOSS] / samples}
