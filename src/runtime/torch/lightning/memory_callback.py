"""Follow the memory of a rank's tensors through one step under Lightning (`memory_tracker=true`)."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from src.compat.live_tensors import LiveTensors
from src.compat.torch import FakeTensor, tree_leaves
from src.measure.live_step import LiveBytes
from src.measure.recorder import Recorder
from src.run import files
from src.run.tables import write_text
from src.runtime.torch.feed import Batch
from src.runtime.torch.lightning.module import TrainingModule


class MemoryCallback(pl.Callback):
    """A Lightning callback that follows the last step of the warm-up, which isn't timed.

    What a rank holds of tensors before that step is found by Python's garbage collector, which knows none
    that autograd alone holds. Where passes of earlier steps are under way then, these are followed, too.
    """

    def __init__(self, module: TrainingModule, recorder: Recorder, device: torch.device, parts: int) -> None:
        """Follow the step.

        Args:
            module: what is trained, or what records for the author's own module.
            recorder: the rank's recorder, which counts the steps.
            device: where the rank computes.
            parts: batches of Lightning's, which are micro-batches, in a step.
        """
        self._module, self._recorder, self._device, self._parts = module, recorder, device, parts
        self._live: LiveTensors | None = None
        self._hook: RemovableHandle | None = None
        self._began, self._from = 0.0, 0
        self._predicted: LiveBytes | None = None
        self._reason: str | None = None

    def on_train_start(self, trainer: pl.Trainer, _: pl.LightningModule) -> None:
        """Predict the step, if that can be done."""
        try:
            self._predicted = self._module.predicted_memory(trainer.strategy, self._device)
        except Exception as error:
            # A prediction that fails is no reason not to train.
            self._reason = (str(error).strip() or type(error).__name__).splitlines()[0]

    def on_train_batch_start(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch: Batch, index: int
    ) -> None:
        """Begin to follow at the step's first micro-batch."""
        begins = index % self._parts == 0
        if (
            self._live is None
            and begins
            and self._steps_left
            and (self._module.lag > 1 or self._steps_left == 1)
        ):
            self._begin(trainer)
        if self._live is None:
            return
        if begins:
            self._began, self._from = time.perf_counter(), len(self._live.changes)
        self._live.name("other", self._tensors(batch))

    @property
    def _steps_left(self) -> int:
        """Return how many steps of the warm-up aren't done; what is timed isn't followed."""
        return max(0, self._recorder.config.warmup_steps - self._recorder.trained_steps)

    def _begin(self, trainer: pl.Trainer) -> None:
        live = self._live = LiveTensors()
        gc.collect()
        live.name(
            "other", self._on_device(each for each in gc.get_objects() if issubclass(type(each), Tensor))
        )
        live.name("weights", self._module.parameters())
        live.name("exchange", getattr(trainer.strategy, "exchange_buffers", tuple)())
        for part, tensors in self._module.held_tensors().items():
            live.name(part, tensors)
        self._name_state(trainer, live)
        self._hook = register_optimizer_step_post_hook(lambda *_: live.updating(False))
        live.__enter__()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Name the gradients that there are before the update."""
        if self._live is not None:
            self._live.name("gradients", self._gradients())
            self._live.updating(True)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        """End with the step's last micro-batch, and write what was found."""
        if self._live is None:
            return
        if (index + 1) % self._parts:
            self._live.name("gradients", self._gradients())
            return
        seconds = time.perf_counter() - self._began
        self._name_state(trainer, self._live)
        self._live.name("weights", self._module.held_tensors().get("weights", ()))
        if self._steps_left > 1:
            return
        self.stop()
        live, self._live = self._live, None
        found = LiveBytes.of(live.parts()).since(self._from)
        record = {
            "seconds": seconds,
            "measured": found.most(),
            "predicted": None if self._predicted is None else self._predicted.most(),
            "not_predicted": self._reason,
            "moments": found.thinned().rows(),
        }
        write_text(self._recorder.folder / files.LIVE_TENSORS, json.dumps(record))

    def stop(self) -> None:
        """Follow no further operation."""
        if self._hook is not None and self._live is not None:
            self._hook.remove()
            self._hook = None
            self._live.__exit__(None, None, None)

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        """Follow no further operation where the step fails."""
        self.stop()

    def _name_state(self, trainer: pl.Trainer, live: LiveTensors) -> None:
        """Name the gradients and the optimizers' state that there are now."""
        live.name("gradients", self._gradients())
        states = [state for optimizer in trainer.optimizers for state in optimizer.state.values()]
        live.name("optimizer", self._tensors([list(state.values()) for state in states]))

    def _gradients(self) -> list[Tensor]:
        return [each.grad for each in self._module.parameters() if each.grad is not None]

    def _tensors(self, values: Any) -> list[Tensor]:
        return self._on_device(each for each in tree_leaves(values) if isinstance(each, Tensor))

    def _on_device(self, tensors: Iterator[Tensor]) -> list[Tensor]:
        return [
            each for each in tensors if each.device.type == self._device.type and type(each) is not FakeTensor
        ]
