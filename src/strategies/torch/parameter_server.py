"""Parameter servers: workers fetch parameters, compute a gradient of their share of a batch, and push it.

The servers hold the flattened parameters in equal parts, and the optimizer's state of them; a push is the
gradient of the share's part of the batch's mean loss. `strategy.mode` says when it takes effect:

    sync        all workers' pushes of a step are one update, of their sum (rank r has share r of each batch)
    async       each on its arrival
    ssp         stale synchronous parallel (Ho 2013): nobody is more than `staleness` steps ahead
    downpour    Downpour SGD (Dean 2012, algorithm 7.1): a worker fetches every `fetch_every` steps, pushes
                the sum of its gradients every `push_every`, and takes plain steps of its own in between;
                the servers update by Adagrad
    shat        scale- and heterogeneity-aware merging, as paper 4 tells of Ko & Kim (2022), whose formula
                was not at hand. The rule here: a worker takes plain steps on weights of its own, and merges
                the servers' into them, w <- w + m (w' - w) with m = 1 / (1 + staleness / workers), where
                staleness is that of its own last step. Alone it has the servers' weights, as staleness is 0.

A process is a worker or a server (`serve`), or the coordinator (`train`), who hands out shares, evaluates by
the workers and records for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from src.config import Config
from src.launch import cluster
from src.measure.recorder import Recorder
from src.runtime.torch import coordination
from src.runtime.torch.server import Server, Servers
from src.runtime.torch.turn_worker import ServedWorker
from src.worker import Run


def worker(run: Run, addresses: Mapping[str, Sequence[str]]) -> ServedWorker:
    """One worker, by the addresses of the others."""
    return ServedWorker(run, addresses)


def serve(config: Config, cores: tuple[int, ...], folder: Path) -> NoReturn:
    """A worker or a server; whoever started it ends it."""
    addresses, kind, number = cluster.known()
    if kind == "worker":
        coordination.serve_worker(config, cores, folder, worker)
    torch.set_num_threads(len(cores))
    Server(addresses["server"][number]).ended.wait()
    coordination.stay()


def train(run: Run, recorder: Recorder) -> None:
    """The coordinator."""
    options = run.config.strategy
    told = rule(run.config)
    # Its state is what a checkpoint has.
    run = replace(run, config=replace(run.config, optimizer=told["optimizer"]))
    downpour = options["mode"] == "downpour"
    # Nobody is ahead, so that a clock's pushes can be those of one batch: if nobody takes two shares of it.
    in_step = told["bound"] == 0
    coordination.coordinate(
        run,
        recorder,
        Servers(cluster.known()[0]["server"], **told),
        fixed=in_step,
        fetches=1 / options["fetch_every"] if downpour else 1,
        pushes=1 / options["push_every"] if downpour else 1,
    )


def rule(config: Config) -> Mapping[str, Any]:
    """What the servers are told of how pushes take effect."""
    mode = config.strategy["mode"]
    name = "adagrad" if mode == "downpour" else config.optimizer["name"]
    return {
        "workers": config.workers,
        "bound": {"sync": 0, "ssp": config.strategy["staleness"]}.get(mode),
        "together": mode == "sync",
        "optimizer": {**config.optimizer, "name": name},
    }
