"""Training any torch strategy through PyTorch Lightning: one module, one feed, one callback.

Lightning runs the loop and its Strategy distributes; here is what Scaleguide adds to every strategy:
the shared order of samples, the clock, evaluation of each test sample once, and an agreed end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.plugins.environments import TorchElasticEnvironment
from pytorch_lightning.strategies import Strategy
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from src.data import order
from src.measure import memory
from src.measure.recorder import Recorder
from src.models import adapt
from src.runtime.torch import cost, memory_format
from src.worker import Run

EVALUATION_BATCH = 500
# Ranks agree on whether to go on about this often.
AGREE_SECONDS = 0.5

Batch = tuple[Tensor, Tensor]


def root_device(run: Run) -> torch.device:
    """The rank's own device: the launcher shows each rank one GPU, or pins it to its cores."""
    return torch.device("cuda", 0) if run.config.hardware["device"] == "gpu" else torch.device("cpu")


def environment() -> TorchElasticEnvironment:
    """How Lightning learns rank and world size: from torchrun's environment variables."""
    return TorchElasticEnvironment()


def build(run: Run) -> nn.Module:
    """The whole model with the seed's weights, the same on every rank."""
    torch.manual_seed(run.config.seed)
    model: nn.Module = adapt.build(run.config, classes=run.arrays.classes, shape=run.arrays.shape)
    return memory_format.channels_last(model, run.arrays.shape)


def to_inputs(run: Run, images: Tensor, device: torch.device) -> Tensor:
    """Normalised images [batch, channels, height, width] from uint8 [batch, height, width, channels].

    They have torch's default dtype: fp32, or float64 where a test asks for sharper equality.
    """
    dtype = torch.get_default_dtype()
    mean = torch.tensor(run.arrays.mean, device=device, dtype=dtype).view(1, -1, 1, 1) * 255
    scale = 1 / (torch.tensor(run.arrays.std, device=device, dtype=dtype).view(1, -1, 1, 1) * 255)
    return images.to(device, non_blocking=True).permute(0, 3, 1, 2).to(dtype).sub_(mean).mul_(scale)


class Feed:
    """This rank's micro-batches of one epoch after the other, in the order shared by all strategies."""

    def __init__(self, run: Run, recorder: Recorder, device: torch.device) -> None:
        self.run = run
        self.recorder = recorder
        self.device = device
        self.epoch = 0
        self.steps = order.steps_per_epoch(run.arrays.train_samples, run.config.global_batch)

    def __len__(self) -> int:
        return self.steps * self.run.config.microbatches

    def __iter__(self) -> Iterator[Batch]:
        config, arrays = self.run.config, self.run.arrays
        permutation = order.epoch_order(arrays.train_samples, config.seed, self.epoch)
        world = self.run.world_size if config.strategy["supports"]["shares_batch"] else 1
        mine = order.shard(config.global_batch, self.run.rank if world > 1 else 0, world)
        for step in range(self.steps):
            indices = order.batch_indices(permutation, step, config.global_batch)[mine]
            for micro in range(config.microbatches):
                with self.recorder.waiting_for_input():
                    part = indices[order.shard(len(indices), micro, config.microbatches)]
                    images = torch.from_numpy(arrays.train_images[part])
                    labels = torch.from_numpy(arrays.train_labels[part])
                    batch = to_inputs(self.run, images, self.device), labels.to(self.device)
                yield batch


class Training(pl.LightningModule):
    """The model under Lightning: cross-entropy, and the epoch's sums of loss and correct answers."""

    def __init__(self, run: Run, model: nn.Module) -> None:
        super().__init__()
        self.run = run
        self.model = model
        self.sums = torch.zeros(3, dtype=torch.float64)  # loss x samples, correct, samples
        self.step_loss = torch.zeros(())

    def training_step(self, batch: Batch, _: int) -> Tensor:
        """Mean loss of one micro-batch."""
        inputs, labels = batch
        logits = self.model(inputs)
        loss = functional.cross_entropy(logits, labels)
        with torch.no_grad():
            detached = loss.detach()
            self.step_loss = self.step_loss + detached
            correct = (logits.argmax(1) == labels).sum()
            self.sums = self.sums + torch.stack([detached * len(labels), correct, correct * 0 + len(labels)])
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer of the configuration, over this rank's parameters."""
        chosen = self.run.config.optimizer
        if chosen["name"] == "adam":
            return torch.optim.Adam(self.parameters(), lr=chosen["lr"])
        return torch.optim.SGD(self.parameters(), lr=chosen["lr"], momentum=chosen["momentum"])


@torch.no_grad()
def evaluate(run: Run, model: nn.Module, device: torch.device) -> Tensor:
    """(loss x samples, correct, samples) over this rank's shard of the test set, as float64 [3]."""
    arrays = run.arrays
    part = order.shard(arrays.test_samples, run.rank, run.world_size)
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    model.eval()
    try:
        for start in range(part.start, part.stop, EVALUATION_BATCH):
            stop = min(start + EVALUATION_BATCH, part.stop)
            images = torch.from_numpy(arrays.test_images[start:stop].copy())
            labels = torch.from_numpy(arrays.test_labels[start:stop].copy()).to(device)
            logits = model(to_inputs(run, images, device)).float()
            loss = functional.cross_entropy(logits, labels, reduction="sum")
            sums += torch.stack([loss, (logits.argmax(1) == labels).sum(), loss * 0 + len(labels)])
    finally:
        model.train()
    return sums


class Conductor(pl.Callback):
    """The clock, the evaluations and the agreed end of one rank's training."""

    def __init__(
        self, run: Run, recorder: Recorder, feed: Feed, before_evaluation: Callable[[], None]
    ) -> None:
        self.run = run
        self.recorder = recorder
        self.feed = feed
        self.before_evaluation = before_evaluation
        self.device = feed.device
        self.status = "ok"
        self.agree_at = 1

    def on_train_start(self, *_: object) -> None:
        """Every rank starts its clock when all are ready."""
        self.recorder.facts["steps_per_epoch"] = self.feed.steps
        self._sum(torch.zeros(1))
        self.recorder.begin()

    def on_train_epoch_start(self, trainer: pl.Trainer, _: object) -> None:
        """Tells the feed which epoch's order comes next."""
        self.feed.epoch = trainer.current_epoch

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: Training, outputs: object, batch: Batch, index: int
    ) -> None:
        """Records a completed optimizer step."""
        config = self.run.config
        if (index + 1) % config.microbatches:
            return
        loss = module.step_loss / config.microbatches
        module.step_loss = torch.zeros((), device=self.device)
        self.recorder.step(loss, len(batch[1]) * config.microbatches, epoch=trainer.current_epoch + 1)
        if self.recorder.steps >= self.agree_at:
            self._agree(trainer)
        every = config.evaluate_every
        if every and self.recorder.steps % every == 0:
            self._evaluate(module)

    def _agree(self, trainer: pl.Trainer) -> None:
        """All ranks end at the same step, by the slowest one's clock."""
        self.recorder.flush()
        mine = torch.tensor([self.recorder.train_seconds, float(self.recorder.diverged)], dtype=torch.float64)
        if self.run.world_size > 1:
            mine = mine.to(self.device)
            dist.all_reduce(mine, dist.ReduceOp.MAX)
        seconds, diverged = mine.tolist()
        if diverged:
            self.status, trainer.should_stop = "diverged", True
        elif seconds > self.run.config.max_minutes * 60:
            self.status, trainer.should_stop = "time_limit", True
        pace = seconds / self.recorder.steps
        self.agree_at = self.recorder.steps + min(50, max(1, round(AGREE_SECONDS / pace)))

    def on_train_epoch_end(self, _: pl.Trainer, module: Training) -> None:
        """One evaluation an epoch."""
        self._evaluate(module)

    def on_train_end(self, _: pl.Trainer, module: Training) -> None:
        """Ends the record; what is measured here is outside the clock."""
        recorder = self.recorder
        recorder.facts |= memory.peak(self.device)
        recorder.facts["parameters"] = sum(p.numel() for p in module.model.parameters())
        recorder.facts["batch_statistics"] = any(isinstance(m, _BatchNorm) for m in module.model.modules())
        sample = to_inputs(self.run, torch.from_numpy(self.run.arrays.test_images[:4].copy()), self.device)
        # On every rank: a synchronised BatchNorm waits for the others in there.
        recorder.facts |= cost.measure(module.model, sample, self.device)
        recorder.flush()
        status = "diverged" if recorder.diverged else self.status
        if status == "time_limit" and recorder.steps == self.feed.steps * self.run.config.epochs:
            status = "ok"
        recorder.finish(status)

    def _evaluate(self, module: Training) -> None:
        if self.recorder.evaluated_at == self.recorder.steps:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        with self.recorder.off_clock():
            self.before_evaluation()
            start = time.perf_counter()
            tested = self._sum(evaluate(self.run, module.model, self.device))
            seconds = time.perf_counter() - start
            trained = self._sum(module.sums.to(self.device))
            module.sums = torch.zeros(3, dtype=torch.float64)
            loss, correct, count = tested.tolist()
            train_loss, train_correct, train_count = trained.tolist()
            self.recorder.facts["validation_samples_per_second"] = count / seconds
            self.recorder.evaluated(
                epoch=self.recorder.steps / self.feed.steps,
                train_loss=train_loss / train_count if train_count else None,
                train_accuracy=train_correct / train_count if train_count else None,
                loss=loss / count if math.isfinite(loss) else math.nan,
                accuracy=correct / count,
                seconds=seconds,
            )
            # Rank 0 logs to MLflow in there; the others wait for it off the clock too.
            self._sum(torch.zeros(1))

    def _sum(self, values: Tensor) -> Tensor:
        if self.run.world_size > 1:
            values = values.to(self.device)
            dist.all_reduce(values)
        return values


def fit(
    run: Run,
    recorder: Recorder,
    strategy: Strategy,
    *,
    prepare: Callable[[nn.Module], nn.Module] = lambda model: model,
    before_evaluation: Callable[[Training], None] = lambda module: None,
) -> None:
    """Trains under a Lightning strategy and fills the record.

    `prepare` changes the seeded model before training (as a synchronised BatchNorm does);
    `before_evaluation` brings the ranks' copies together where they differ between steps.
    """
    torch.set_num_threads(len(run.cores))
    config = run.config
    device = root_device(run)
    memory.start(device)
    module = Training(run, prepare(build(run)))
    feed = Feed(run, recorder, device)
    gpu = device.type == "cuda"
    trainer = pl.Trainer(
        accelerator="gpu" if gpu else "cpu",
        devices=1 if run.world_size == 1 or gpu else run.world_size,
        strategy=strategy,
        precision="bf16-mixed" if config.precision == "bf16" else "32-true",
        max_epochs=config.epochs,
        accumulate_grad_batches=config.microbatches,
        callbacks=[Conductor(run, recorder, feed, lambda: before_evaluation(module))],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
    )
    _leave_sigterm_to_the_parent(trainer)
    trainer.fit(module, feed)


def _leave_sigterm_to_the_parent(trainer: pl.Trainer) -> None:
    """Lightning 2.6 broadcasts before every batch whether rank 0 got a SIGTERM, and waits for it.

    Here the parent ends all ranks together, and the broadcast would be timed with every step.
    """
    loop = trainer.fit_loop.epoch_loop
    if hasattr(loop, "_broadcast_sigterm_tensor"):
        loop._broadcast_sigterm_tensor = lambda: None
