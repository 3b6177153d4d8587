"""Parameter servers: workers fetch parameters, compute a gradient of their part of a batch, and push it.

The servers hold the flattened parameters in equal shards, and the optimizer's state for these. A push is the
worker's contribution to the gradient of the batch's mean loss. `strategy.mode` says when a push takes effect:

    sync        all workers' pushes of a step are one update, by their sum (rank r has part r of each batch)
    async       each push takes effect on its arrival
    ssp         stale synchronous parallel (Ho 2013): no worker is more than `staleness` steps ahead
    downpour    Downpour SGD (Dean 2012, algorithm 7.1): a worker fetches every `fetch_every` steps, pushes
                the sum of its gradients every `push_every` steps, and takes plain SGD steps on its own copy
                in between; the servers update by Adagrad
    shat        scale- and heterogeneity-aware merging, as paper 4 describes Ko & Kim (2022), whose formula
                was not available. The rule here: a worker takes plain SGD steps on weights w of its own, and
                merges the servers' weights w' into them, w <- w + m (w' - w) with m = 1 / (1 + staleness /
                workers), where staleness is that of the worker's last step. A worker without others has
                staleness 0, and so takes the servers' weights.

A step's learning rate is that of the global batch of which it trains a part, also on the worker's own copy.
Under `sync` the servers clip the sum of a step's gradients and add weight decay; otherwise each worker does,
to its own (`src/runtime/common/update_terms.py`). Pushes may be compressed
(`src/runtime/torch/parameter_server/pushes.py`); what is fetched isn't.

A process is a worker or a server (`serve`), or the coordinator (`train`), which schedules parts of batches,
has the workers evaluate, and keeps the records of all workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, Self

import torch

from src.config import Config
from src.measure.recorder import Recorder
from src.run.variables import ClusterSpec
from src.runtime.common import update_terms
from src.runtime.common.context import RankContext
from src.runtime.common.learning_rate import LearningRate
from src.runtime.common.update_terms import WorkerTerms
from src.runtime.torch.compression.options import Compression
from src.runtime.torch.parameter_server.async_processes import coordinate, serve_worker, wait_for_the_parent
from src.runtime.torch.parameter_server.ps_worker import PSWorker
from src.runtime.torch.parameter_server.pushes import without_accumulated
from src.runtime.torch.parameter_server.server import Server, ServerGroup


@dataclass(frozen=True, kw_only=True)
class Options(Compression):
    """The options of conf/strategy/parameter_server.yaml; all modes but downpour fetch and push each step."""

    mode: str
    staleness: int
    fetch_every: int
    push_every: int

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the options that a run has, as its mode takes them."""
        options = super().of(config)
        return options if options.mode == "downpour" else replace(options, fetch_every=1, push_every=1)


def make_worker(context: RankContext, addresses: Mapping[str, Sequence[str]]) -> PSWorker:
    """Make a worker that connects to the coordinator and the servers.

    Args:
        context: the worker's context.
        addresses: those of all processes by job.
    """
    options = Options.of(context.config)
    return PSWorker(
        context,
        addresses,
        fetch_every=options.fetch_every,
        push_every=options.push_every,
        merges=options.mode == "shat",
        # The servers clip and decay the sum of a step's gradients, which is one update.
        terms=WorkerTerms() if options.mode == "sync" else None,
    )


def serve(config: Config, cores: tuple[int, ...], folder: Path) -> NoReturn:
    """Run the process of a worker or a server until the parent ends it.

    Args:
        config: the run's configuration.
        cores: the cores that this process is pinned to.
        folder: the folder of this process's records.
    """
    cluster = ClusterSpec.from_environment()
    if cluster.job == "worker":
        serve_worker(config, cores, folder, make_worker)
    torch.set_num_threads(len(cores))
    Server(cluster.addresses["server"][cluster.task]).closed.wait()
    wait_for_the_parent()


def train(context: RankContext, recorder: Recorder) -> None:
    """Run the coordinator, which trains by the workers and has the parameters on the servers.

    Raises:
        ConfigError: when the run can't go on from the configured checkpoint.
    """
    options = Options.of(context.config)
    rule = update_rule(context.config)
    # Checkpoints hold the state of the servers' optimizer, which in some modes isn't the configured one.
    rate = LearningRate.of(context.config, context.arrays.train_samples)
    context = replace(context, config=replace(context.config, optimizer=rule["optimizer"]))
    coordinate(
        context,
        recorder,
        ServerGroup(ClusterSpec.from_environment().addresses["server"], **rule, rate=asdict(rate)),
        # Under bound 0 no worker is ahead. If no worker takes two parts of a batch either, the pushes of one
        # clock are those of one batch.
        fixed=rule["bound"] == 0,
        fetches=1 / options.fetch_every,
        pushes=1 / options.push_every,
    )


def update_rule(config: Config) -> Mapping[str, Any]:
    """Return the rule by which the servers apply pushes, as `ServerGroup` takes it, without the rate."""
    options = Options.of(config)
    optimizer = without_accumulated(config, update_terms.served_optimizer(config))
    return {
        "workers": config.workers,
        "bound": {"sync": 0, "ssp": options.staleness}.get(options.mode),
        "sum_per_clock": options.mode == "sync",
        "optimizer": optimizer if options.mode == "sync" else update_terms.of_servers(optimizer),
        "compression": options.compression,
    }
