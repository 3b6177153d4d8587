"""Train a LightningModule as its author wrote it: Lightning calls its own step, update and hooks.

Lightning's Trainer is given the author's module itself. Around it the methods of `TrainingModule` record,
evaluate and count. The author's methods are wrapped where something is to follow them: the loss is weighed by
the samples of its micro-batch, what is logged is kept, and a step is complete once `on_train_batch_end` has
returned, an epoch once `on_train_epoch_end` has.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import Strategy
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor, nn

from src.compat import lightning
from src.config import ConfigError, own_training
from src.measure.rank_record import RankRecord
from src.measure.recorder import Recorder
from src.models import adapt
from src.models.torch.unchanged import evaluating, unchanged
from src.runtime.common.context import RankContext
from src.runtime.torch import peak, step_seeds
from src.runtime.torch.feed import Feed
from src.runtime.torch.lightning import own_step
from src.runtime.torch.lightning.logged import TRAIN, VALIDATION, Logged, weight_in
from src.runtime.torch.lightning.module import TrainingModule
from src.runtime.torch.lightning.own_feed import OwnFeed, TestFeed
from src.tasks.torch.own_loss import OwnLoss


class OwnModule(TrainingModule):
    """A LightningModule with a step of its own.

    Attributes:
        model: the author's module, which Lightning trains.
        name: the key and value by which the user has named it.
        test_feed: what is validated, `None` before `attach`.
    """

    model: pl.LightningModule

    def __init__(self, context: RankContext, model: nn.Module) -> None:
        assert isinstance(model, pl.LightningModule)
        super().__init__(context, model)
        self.name = adapt.key_and_name(context.config)
        self.test_feed: TestFeed | None = None
        self.test_samples: int | None = None
        self._logged = Logged()
        self._feed: OwnFeed | None = None
        # Sums of what validation returns as its loss: over samples, and of these.
        self._validated: list[tuple[Tensor, int]] = []
        self._monitored: set[str] = set()
        # What the author's step has gone backward from by hand.
        self._by_hand: list[Tensor] = []
        own = is_overridden("configure_optimizers", model)
        if own != own_training.has_own_update(context.config):
            raise ConfigError(
                f"{self.name}: has a configure_optimizers that its text doesn't show; name the class itself, "
                "with the method in it or in a base class that it names"
            )

    @property
    def trained(self) -> pl.LightningModule:
        """Return the module that Lightning trains."""
        return self.model

    @property
    def scores_training(self) -> bool:
        """Return that training samples aren't scored, for the step gives a loss alone."""
        return False

    def feed(self, recorder: Recorder, device: torch.device) -> OwnFeed:
        """Make the feed of this rank's micro-batches."""
        parts = self.context.config.microbatches
        self._feed = OwnFeed(self.context, recorder, device, self.task, parts=parts, split=self.split)
        return self._feed

    def warm_up(self, feed: Feed) -> None:
        """Do nothing, for the step isn't compiled."""

    def predicted_memory(self, strategy: Strategy, device: torch.device) -> None:
        """Return `None`, for nobody knows what the author's step does."""

    def attach(self, step_ended: Callable[[int], None], epoch_ended: Callable[[], None]) -> None:
        """Wrap the author's methods.

        Args:
            step_ended: called with the micro-batch's number after each `on_train_batch_end`.
            epoch_ended: called after each `on_train_epoch_end`.
        """
        model = self.model
        assert self._feed is not None
        self.test_feed = TestFeed(self._feed, self.test_samples)
        if not own_training.has_own_update(self.context.config):
            model.configure_optimizers = self.configure_optimizers  # type: ignore[method-assign]
            model.configure_gradient_clipping = self.configure_gradient_clipping  # type: ignore[method-assign]
        # What it would prepare are data of its own loaders, which aren't used.
        model.prepare_data = lambda: None  # type: ignore[method-assign]
        self._wrap("training_step", self._trained_on)
        self._wrap("manual_backward", lambda _, arguments: self._by_hand.append(arguments[0].detach()))
        if is_overridden("validation_step", model):
            self._wrap("validation_step", self._validated_on)
        self._wrap("on_train_batch_start", self._started)
        self._wrap("on_train_batch_end", lambda _, arguments: step_ended(arguments[2]))
        self._wrap("on_train_epoch_end", lambda *_: epoch_ended())
        model.log = self._log_by(model.log)  # type: ignore[method-assign]
        step_seeds.seed(self.context.config, self.context.rank, 0)

    def _wrap(self, name: str, then: Callable[[Any, tuple[Any, ...]], Any]) -> None:
        """Have `then` called with what the author's method has returned, and with its arguments.

        Unless that is `None`, what it returns takes the place of the method's value.
        """
        method = getattr(self.model, name)

        @functools.wraps(method)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            returned = method(*arguments, **named)
            replaced = then(returned, (*arguments, *named.values()))
            return returned if replaced is None else replaced

        setattr(self.model, name, wrapped)

    def _trained_on(self, returned: Any, _: tuple[Any, ...]) -> Any:
        """Count a micro-batch's samples and its loss, and weigh the gradient by them.

        The weight is such that the mean over all ranks' micro-batches is the mean over the global batch. The
        loss keeps its value, which the author's hooks see.
        """
        by_hand, self._by_hand = self._by_hand, []
        if returned is None and by_hand:
            # It needn't return what it has gone backward from.
            returned = torch.stack([loss.reshape(()) for loss in by_hand]).sum()
        loss = self._loss_of(returned, "training_step")
        feed = self._feed
        assert feed is not None
        # An optimizer may call the step several times.
        if feed.fresh:
            feed.fresh = False
            summed = loss.detach().double().reshape(()) * feed.samples
            self.step_loss = self.step_loss.to(summed.device) + summed
            self.step_samples += feed.samples
            counts = summed.new_full((2,), feed.samples)
            zeros = summed.new_zeros(len(self.sums) - 3)
            self.sums = self.sums.to(loss.device) + torch.cat([summed.reshape(1), counts, zeros])
        weight = feed.samples * self.pieces / self.context.config.global_batch
        if weight == 1 or not self.model.automatic_optimization:
            return None
        weighed = loss.detach() + (loss - loss.detach()) * weight
        return weighed if isinstance(returned, Tensor) else {**returned, "loss": weighed}

    def _loss_of(self, returned: Any, step: str) -> Tensor:
        """Return the loss of what a step has returned; raise `ConfigError` where there is none."""
        loss = returned.get("loss") if isinstance(returned, Mapping) else returned
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            kind = "None" if returned is None else f"a {type(returned).__name__} without a loss"
            reason = "which would skip a step" if returned is None else "of one element"
            raise ConfigError(
                f"{self.name}: its {step} returned {kind}, {reason}; return the loss, or a dict with `loss`"
            )
        return loss

    def _validated_on(self, returned: Any, _: tuple[Any, ...]) -> None:
        """Keep the loss that a validation step returns, if it does."""
        assert self.test_feed is not None
        loss = returned
        if isinstance(returned, Mapping):
            loss = next(iter(returned.values())) if len(returned) == 1 else returned.get("loss")
        if isinstance(loss, Tensor) and loss.numel() == 1:
            self._validated.append((loss.detach().double().reshape(()), self.test_feed.samples))

    def _started(self, returned: Any, _: tuple[Any, ...]) -> None:
        if returned == -1:
            raise ConfigError(
                f"{self.name}: its on_train_batch_start returned -1, which ends an epoch early; all epochs "
                "here have the same steps"
            )

    def _log_by(self, log: Callable[..., None]) -> Callable[..., None]:
        """Return a method that logs by the author's, and keeps what is logged."""
        signature = inspect.signature(log)

        def keep(*arguments: Any, **named: Any) -> None:
            given = signature.bind(*arguments, **named)
            given.apply_defaults()
            values = given.arguments
            if values["name"] in self._monitored and self.context.world_size > 1:
                # Ranks that schedule by it have to have the same.
                values["sync_dist"] = True
            log(*given.args, **given.kwargs)
            stage, samples = self._stage()
            if values["logger"] is False:
                return
            size = values["batch_size"] or samples
            weight = weight_in(lightning.current_hook(self.model), size)
            self._logged.add(stage, values["name"], values["value"], weight, values["reduce_fx"])

        return keep

    def _stage(self) -> tuple[str, int]:
        """Return whether this is training or validation, and the samples of its latest batch."""
        assert self._feed is not None and self.test_feed is not None
        if self.model.trainer.validating:
            return VALIDATION, self.test_feed.samples
        return TRAIN, self._feed.samples

    def on_start(self, trainer: pl.Trainer) -> None:
        """Take note of what the author's schedulers go by."""
        self._monitored = {
            str(each.monitor) for each in trainer.lr_scheduler_configs if each.reduce_on_plateau
        }

    def evaluate(self, device: torch.device) -> Tensor:
        """Run the author's validation on this rank's part of the test set, and score it by the task."""
        self._validated.clear()
        validates = is_overridden("validation_step", self.model)
        if validates:
            lightning.validate(self.model.trainer)
        if not isinstance(self.task, OwnLoss):
            return super().evaluate(device)
        if not validates:
            self._score_by_training_step()
        samples = sum(count for _, count in self._validated)
        total = sum(float(loss) * count for loss, count in self._validated)
        if not samples:
            total, samples = self._logged_loss()
        figures = [total, samples, samples, total]
        return torch.tensor(figures, dtype=torch.float64, device=device)

    def _logged_loss(self) -> tuple[float, int]:
        """Return the sum over samples of the loss that validation has logged, and their number."""
        found = self._logged.loss(VALIDATION)
        if found is None:
            raise ConfigError(
                f"{self.name}: its validation_step neither returns a loss nor logs one, as val_loss; let it, "
                "or choose task=classification if its forward gives logits"
            )
        return found

    def _score_by_training_step(self) -> None:
        """Take the training step's loss of test samples, in evaluation mode, with nothing logged."""
        trainer, feed = self.model.trainer, self.test_feed
        assert feed is not None
        with evaluating(self.model), own_step.silent(self.model):
            for place, batch in enumerate(feed):
                moved = trainer.strategy.batch_to_device(batch)
                with trainer.precision_plugin.val_step_context():
                    returned = own_step.call(self.model, moved, place)
                self._validated.append((self._loss_of(returned, "training_step").double(), feed.samples))

    def take_logged(self, stage: str) -> dict[str, float | None]:
        """Return what was logged since the last evaluation by name, of all ranks, which all call this."""
        return self._logged.take(stage, self.model.trainer.callback_metrics if stage == VALIDATION else {})

    def facts(self, device: torch.device) -> RankRecord:
        """Return the facts of the model for the record, by its own training step."""
        found: RankRecord = {"parameters": sum(each.numel() for each in self.model.parameters())}
        with unchanged(self.model):
            found |= own_step.facts(self.context, self.model, device)
        return found | peak.facts(self.context, device)
