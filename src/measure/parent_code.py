"""Tell which modules of the parent can touch a run's figures, on the hardware that it has.

Each module to which `src.train` leads, and which no rank imports, stands in one of the tables here, itself or
with its package. What stands in none counts.
"""

from __future__ import annotations

from collections.abc import Callable

from src.config import Config

# These prepare samples; start, pin, pace and sample ranks; and work out their figures.
FIGURES = (
    "src.data.archives",
    "src.data.decoding",
    "src.data.generate",
    "src.data.own_code",
    "src.data.prepare",
    "src.data.shard_writer",
    "src.data.splits_of",
    "src.launch.host",
    "src.launch.hosts",
    "src.launch.launched",
    "src.launch.launcher",
    "src.launch.local.agents",
    "src.launch.local.fork_server",
    "src.launch.local.hosts",
    "src.launch.local.isolation",
    "src.launch.local.trace",
    "src.launch.local.warm_start",
    "src.launch.process_spec",
    "src.launch.spawn",
    "src.launch.surroundings",
    "src.launch.supervise.choose_hosts",
    "src.launch.supervise.job_result",
    "src.launch.supervise.processes",
    "src.launch.supervise.supervisor",
    "src.launch.training",
    "src.machine.counters",
    "src.measure.arithmetic",
    "src.measure.contention",
    "src.measure.gpu_reader",
    "src.measure.merge",
    "src.measure.metrics",
    "src.measure.network",
    "src.measure.sampler",
    "src.measure.timeline",
)


def _has_links(config: Config) -> bool:
    return config.hardware.links is not None


# These do so for some runs alone.
SOMETIMES: dict[str, Callable[[Config], bool]] = {
    "src.config.emulated_links": _has_links,
    "src.launch.cluster": lambda config: config.on_cluster,
    "src.launch.emulated.hosts": _has_links,
    "src.launch.emulated.link_measurement": _has_links,
    "src.launch.emulated.link_probe": _has_links,
    "src.launch.emulated.router": _has_links,
    "src.launch.emulated.switch": _has_links,
    "src.launch.mpi.agent": lambda config: "mpiexec" in config.strategy,
    "src.launch.mpi.agents": lambda config: "mpiexec" in config.strategy,
    "src.launch.supervise.exchange_benchmark": lambda config: config.hardware.probe,
    "src.launch.supervise.substitute": lambda config: config.hardware.probe,
    "src.machine.link": _has_links,
}
# These touch no figure, for the reason that stands beside each.
NO_FIGURE = {
    "src.compat": "reads command lines and MLflow's store",
    "src.config": "makes a configuration of a command line; a run keeps it, and is compared by it",
    "src.data.available": "looks for prepared samples, and has missing ones made",
    "src.data.downloads": "brings raw files, which are known by their checksums",
    "src.data.mirrors": "brings raw files, which are known by their checksums",
    "src.data.scratch": "keeps what a killed preparation has finished",
    "src.data.sources": "brings raw files, which are known by their checksums",
    "src.launch.cell_checks": "checks a cell before anything starts",
    "src.launch.expected_time": "says how long a sweep takes",
    "src.launch.finished_cells": "says which cells of a sweep are left to be run",
    "src.launch.local.reaper": "removes what a killed command would leave",
    "src.launch.skipped_cells": "records cells that are not run",
    "src.launch.slurm": "submits the command that trains",
    "src.launch.supervise.failure": "says why a run failed",
    "src.launch.supervise.inspection": "looks into the user's own code before a run",
    "src.machine.device_locks": "keeps other commands from devices",
    "src.machine.file_locks": "keeps other commands from files",
    "src.machine.terminal_bar": "shows how far something is",
    "src.measure.all_ranks": "shows what was profiled, which is in no figure",
    "src.measure.environment": "says what a run was computed by and on",
    "src.measure.intervals": "shows what was profiled, which is in no figure",
    "src.measure.parent_code": "says what software is",
    "src.measure.profile_tables": "shows what was profiled, which is in no figure",
    "src.measure.rank_profile": "shows what was profiled, which is in no figure",
    "src.measure.software": "says what software is",
    "src.measure.summary": "prints figures",
    "src.measure.traced_exchange": "shows what was profiled, which is in no figure",
    "src.preflight": "looks into the user's own code before a run",
    "src.report": "shows the figures of a sweep",
    "src.run.directory": "names and replaces a run's directory",
    "src.run.directory_lock": "keeps other commands from a run's directory",
    "src.run.exit_lines": "prints how a command ends",
    "src.run.leases": "waits for devices",
    "src.run.progress": "shows how far a run is",
    "src.partition.torch.kept": "looks into the user's own code before a run",
    "src.partition.torch.comparison": "looks into the user's own code before a run",
    "src.partition.keras.comparison": "looks into the user's own code before a run",
    "src.runtime.tensorflow.model_look": "looks into the user's own code before a run",
    "src.runtime.tensorflow.model_check": "looks into the user's own code before a run",
    "src.runtime.torch.pipeline.cut_check": "looks into the user's own code before a run",
    "src.runtime.torch.sharding.shard_check": "looks into the user's own code before a run",
    "src.runtime.common.seed_check": "looks into the user's own code before a run",
    "src.runtime.torch.device_check": "looks into the user's own code before a run",
    "src.runtime.torch.lightning.own_check": "looks into the user's own code before a run",
    "src.runtime.torch.hook_check": "looks into the user's own code before a run",
    "src.runtime.torch.saved_check": "looks into the user's own code before a run",
    "src.runtime.torch.task_check": "looks into the user's own code before a run",
    "src.tracking": "sends to MLflow what the ranks have recorded",
    "src.train": "reads the command line, and answers for what goes wrong",
}


def counted(config: Config) -> list[str]:
    """Return the modules of the parent that can touch the figures of a run."""
    return [*FIGURES, *(module for module, applies in SOMETIMES.items() if applies(config))]


def leaves_out(module: str, config: Config) -> bool:
    """Return whether a module of the parent touches no figure of a run, by its own entry or its package's."""
    while module:
        if module in SOMETIMES:
            return not SOMETIMES[module](config)
        if module in NO_FIGURE:
            return True
        module = module.rpartition(".")[0]
    return False
