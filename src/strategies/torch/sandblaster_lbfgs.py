"""Sandblaster L-BFGS (Dean 2012, section 4.2): a batch method whose gradients are computed data-parallel.

A step is one iteration of L-BFGS (`src/runtime/torch/parameter_server/lbfgs.py`), line search included, on
the mean loss of one global batch: choose the whole training set as the batch, or a large part of it. The loss
and the gradient at a point are sums over small portions of the batch. As in the paper, the coordinator
schedules each portion on a worker that is free, so that a slow worker takes fewer portions, and other workers
do those of a lost worker. Unlike in the paper, the coordinator holds the vectors of L-BFGS and computes their
dot products. The paper's parameter servers hold shards of these vectors, for models that are too large for
one machine.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from src.config import Config
from src.config.batch_shares import apportion
from src.data import order
from src.measure.rank_record import RankRecord
from src.measure.recorder import Recorder
from src.runtime.common.async_coordinator import CompletedStep
from src.runtime.common.context import RankContext
from src.runtime.common.messages import Connection, Head, Message
from src.runtime.torch import step_seeds
from src.runtime.torch.feed import divisor_of
from src.runtime.torch.parameter_server import answers
from src.runtime.torch.parameter_server.async_processes import coordinate, serve_worker
from src.runtime.torch.parameter_server.coordinator import TorchCoordinator
from src.runtime.torch.parameter_server.lbfgs import LBFGS
from src.runtime.torch.parameter_server.ps_worker import Worker
from src.runtime.torch.parameter_server.work_item import WorkItem


class VectorStore:
    """A `ParameterStore` that holds the parameters in the coordinator, where no worker pushes.

    Attributes:
        values: the parameters [elements].
    """

    def __init__(self) -> None:
        """Make a store without parameters, which `initialize` sets."""
        self.welcome: Mapping[str, Any] = {}
        self.values: Tensor

    def initialize(self, values: Tensor, entries: Mapping[str, Tensor]) -> None:
        """Set the initial values [elements]; L-BFGS has no entries."""
        self.values = values.clone()

    def applied(self) -> list[tuple[int, int]]:
        """Return no steps, since the coordinator reports its own steps."""
        return []

    def rest(self, ranks: Sequence[int]) -> None:
        """Do nothing, since workers never wait for each other."""

    def drain(self) -> None:
        """Do nothing, since no push is ever pending."""

    def state(self) -> tuple[Tensor, dict[str, Tensor], RankRecord]:
        """Return the values, without the pairs of L-BFGS, which begins anew when a run is resumed."""
        return self.values.clone(), {}, {}

    def close(self) -> None:
        """Do nothing, since the store has no process or file."""


class LBFGSCoordinator(TorchCoordinator):
    """A coordinator that runs L-BFGS, and schedules each evaluation of the loss in portions of a batch."""

    def __init__(
        self,
        context: RankContext,
        recorders: list[Recorder],
        address: str,
        store: VectorStore,
        **options: Any,
    ) -> None:
        """Take the arguments and `options` of `TorchCoordinator`, with a store that holds the parameters."""
        super().__init__(context, recorders, address, store, **options)
        self._lbfgs = LBFGS(context.config.strategy["history"])
        self._vector = store
        # The point [elements] where workers evaluate, how often it has changed, and by connection the last
        # such version that was sent to the worker.
        self._point: Tensor | None = None
        self._version = 0
        self._sent: WeakKeyDictionary[Connection, int] = WeakKeyDictionary()
        # Sums over the batch: gradient [elements], and loss and the task's sums; and the version of the point
        # at which they are, which an evaluation may have changed since.
        self._summed_version = -1
        self._gradient = torch.zeros(0)
        self._totals = np.zeros(1 + len(self._task.sums))
        # Seconds of computing and number of samples in the iteration in progress, by worker.
        self._busy: Counter[int] = Counter()
        self._samples: Counter[int] = Counter()
        # Totals: iterations, and by worker how often all parameters and the gradient were sent.
        self._iterations = 0
        self._values_sent: Counter[int] = Counter()
        self._gradients_received: Counter[int] = Counter()

    def schedule(self, batches: np.ndarray, epoch: int) -> None:
        """Take one iteration of L-BFGS on each batch of indices [steps, batch], and wait for its end."""
        for batch in batches:
            self._iterate(batch, epoch)

    def join(self) -> None:
        """Do nothing, since no work item is left after an iteration."""

    def score(self) -> tuple[float, dict[str, float]]:
        """Return the mean loss and the metrics over the test set, at the present parameters."""
        self._move(self._vector.values)
        return super().score()

    def step_bytes(self, rank: int) -> tuple[float, float]:
        """Return the mean bytes that an iteration sends to worker `rank`, and those that it receives."""
        size = self._vector.values.nbytes / max(1, self._iterations)
        return size * self._values_sent[rank], size * self._gradients_received[rank]

    def ask(self, connection: Connection, rank: int, item: WorkItem) -> Message:
        """Give a work item to worker `rank` and return the answer; send a changed point to it first."""
        # A worker that connects, for the first time or again, gets the values before its first item.
        if item.kind not in ("peak", "close") and self._sent.get(connection) != self._version:
            assert self._point is not None
            connection.ask("values", [self._point.numpy()])
            self._sent[connection] = self._version
            self._values_sent[rank] += item.kind == "train"
        return super().ask(connection, rank, item)

    def examine(self, item: WorkItem, head: Head) -> None:
        """Raise `WrongMessage` for a head that announces no answer to a work item."""
        if item.kind == "train":
            gradient = (self._gradient.numpy().dtype.name, tuple(self._vector.values.shape))
            answers.examine_parts("train", head, (gradient,), answers.OF_PORTION, len(self._task.sums))
        else:
            super().examine(item, head)

    def _iterate(self, batch: np.ndarray, epoch: int) -> None:
        """Take one iteration on the samples of indices `batch`, and report a step of each worker."""
        began = time.time()
        first_sums: list[np.ndarray] = []
        self._busy.clear()
        self._samples.clear()
        augmented = self._context.config.dataset.get("augment", "none") != "none"
        if len(batch) < self._context.arrays.train_samples or augmented:
            # The sums of the last batch aren't those of this one, even at the same point.
            self._point = None

        def evaluate(values: Tensor) -> tuple[float, Tensor]:
            # An iteration on the same samples begins at the point where the last one has ended, whose sums
            # are known.
            self._move(values)
            if self._summed_version != self._version:
                self._sum_over(batch, epoch)
            first_sums.append(self._totals[1:])
            return self._totals[0] / len(batch), self._gradient

        loss = self._lbfgs.step(self._vector.values, evaluate)
        pushed = time.time()
        self._iterations += 1
        workers = range(self._context.config.workers)
        samples = apportion(len(batch), [self._samples[rank] or 1e-9 for rank in workers], least=0)
        for rank in workers:
            self.report(
                CompletedStep(
                    rank=rank,
                    loss=float(loss),
                    sums=(first_sums[0] * samples[rank] / len(batch)).tolist(),
                    staleness=None,
                    began=began,
                    # A worker computes at intervals; they are reported as one, of the same length.
                    fetched=pushed - self._busy[rank],
                    computed=pushed,
                    pushed=pushed,
                    # Samples of a batch that the worker has done on average in each evaluation.
                    samples=samples[rank],
                ),
                epoch,
            )

    def _move(self, values: Tensor) -> None:
        """Set the point [elements] where workers evaluate."""
        if self._point is None or not torch.equal(self._point, values):
            self._point = values.clone()
            self._version += 1

    def _sum_over(self, batch: np.ndarray, epoch: int) -> None:
        """Have workers sum gradient, loss and the task's sums over the samples `batch`, in portions.

        These are samples of epoch `epoch`, from 1.
        """
        self._summed_version = self._version
        self._gradient = torch.zeros_like(self._vector.values)
        self._totals = np.zeros(1 + len(self._task.sums))
        divisor = divisor_of(self._context, self._task, batch, epoch - 1)
        portions = [*order.pieces(slice(0, len(batch)), self._context.config.strategy["portion"])]
        # At all points that a line search tries the same is drawn, whichever worker draws it; the point where
        # it begins may be known from the last iteration's draws.
        seeds = (self._iterations * len(portions) + number for number in range(len(portions)))
        figures = {"epoch": epoch, "divisor": divisor}
        asked = zip(portions, seeds, strict=True)
        self._ask_all([WorkItem("train", (batch[part],), {**figures, "step": seed}) for part, seed in asked])

    def take_answer(self, rank: int, item: WorkItem, answer: Message) -> None:
        """Add the gradient and sums of a portion from worker `rank`'s answer; else do as the base class."""
        if item.kind != "train":
            super().take_answer(rank, item, answer)
            return
        self._gradient += torch.from_numpy(answer.arrays[0])
        self._totals += (answer.figures["loss"] * len(item.arrays[0]), *answer.figures["sums"])
        self._gradients_received[rank] += 1
        self._busy[rank] += answer.figures["seconds"]
        self._samples[rank] += len(item.arrays[0])


class BatchWorker(Worker):
    """A worker that computes gradients of portions at the point that the coordinator has sent last."""

    def answer(self, request: Message) -> tuple[Sequence[np.ndarray], Mapping[str, Any]]:
        """Do what a request asks for; return the arrays and figures of the answer."""
        if request.kind == "values":
            self._values = torch.from_numpy(request.arrays[0])
            self._replica.load(self._values)
            return [], {}
        if request.kind != "train":
            return super().answer(request)
        start = time.perf_counter()
        indices, figures = request.arrays[0], request.figures
        step_seeds.seed(self._context.config, self._context.rank, figures["step"])
        gradient, loss, sums = self._replica.gradient(indices, figures["epoch"] - 1, figures["divisor"])
        return [gradient.numpy()], {"loss": loss, "sums": sums, "seconds": time.perf_counter() - start}

    def current_parameters(self) -> Tensor:
        """Return the parameters [elements] that the coordinator has sent last."""
        return self._values


def make_worker(context: RankContext, addresses: Mapping[str, Sequence[str]]) -> Worker:
    """Make a worker that connects to the coordinator; `addresses` holds those of all processes by job."""
    return BatchWorker(context, addresses["coordinator"][0])


def serve(config: Config, cores: tuple[int, ...], folder: Path) -> NoReturn:
    """Run a worker, pinned to `cores` and with its records in `folder`, until the parent ends the process."""
    serve_worker(config, cores, folder, make_worker)


def train(context: RankContext, recorder: Recorder) -> None:
    """Run the coordinator, which runs L-BFGS and has the workers compute its gradients.

    Raises:
        ConfigError: when the run can't go on from the configured checkpoint.
    """
    config = context.config
    portion = min(config.strategy["portion"], config.global_batch)
    recorder.facts["largest_microbatch"] = math.ceil(portion / config.microbatches)
    coordinate(context, recorder, VectorStore(), make=LBFGSCoordinator)
