"""Define the interface of launchers, which say which processes a run has, and how they are started.

A strategy's YAML names its launcher by import path (`launcher: package.module.Class`); the class is called
without arguments.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Protocol

from src.config import Config, ConfigError, OwnCodeError, import_paths
from src.launch.hosts import Hosts
from src.launch.launched import LaunchedProcess
from src.launch.local.warm_start import spawn_for
from src.launch.process_spec import ProcessSpec
from src.launch.spawn import Spawn, spawn_child


class Launcher(Protocol):
    """The interface of a launcher; `LocalLauncher` implements what most launchers have in common.

    A class with these four methods is one; one that inherits from this needs only the last two.
    """

    def check(self, config: Config) -> None:
        """Raise `ConfigError` where this machine lacks something that the launcher itself needs."""

    def prepare(self, config: Config) -> None:
        """Begin slow preparations for starting processes; called once the command line has been accepted."""

    @abstractmethod
    def process_specs(self, config: Config, hosts: Hosts) -> list[ProcessSpec]:
        """Return the processes of a run, in the order in which they are started, placed on `hosts`."""

    @abstractmethod
    def open(self, config: Config, logs: Path, hosts: Hosts) -> tuple[list[LaunchedProcess], Spawn | None]:
        """Prepare to start the processes of a run.

        Args:
            config: the run's configuration.
            logs: the folder for the logs of the launcher's own processes.
            hosts: where the processes will be.

        Returns:
            The launcher's own processes, which run already and end with the run (as `mpiexec`), and the
            function that starts each of `process_specs`. The function is `None` if none of these can be
            started; the first of the launcher's own processes is then to blame.
        """


class LocalLauncher(Launcher):
    """A launcher whose processes the parent starts itself, on this machine."""

    def prepare(self, config: Config) -> None:
        """Start the fork server, which imports the framework, if the run's ranks are forked."""
        _spawn_of(config)

    def open(self, config: Config, logs: Path, hosts: Hosts) -> tuple[list[LaunchedProcess], Spawn | None]:
        """Return no own processes, and the function that starts one as `hardware.start_method` says."""
        return [], _spawn_of(config)


def _spawn_of(config: Config) -> Spawn:
    """Return the function that starts a process of a run here; on a cluster the hosts' agents do it."""
    return spawn_child if config.on_cluster else spawn_for(config)


def launcher_of(config: Config) -> Launcher:
    """Make the launcher that the configuration's strategy names.

    Raises:
        ConfigError: where the import path names nothing, or no launcher.
        OwnCodeError: for an error in the code of a launcher of the user's own.
    """
    path = config.strategy["launcher"]
    import_paths.check("strategy.launcher", path)
    try:
        found = import_paths.resolve("strategy.launcher", path)
        # A class that lacks what it must have can't be called.
        lacking: frozenset[str] = getattr(found, "__abstractmethods__", frozenset())
        launcher = found if lacking else found()
    except ConfigError:
        raise
    except Exception as error:
        raise OwnCodeError(f"strategy.launcher={path}: {import_paths.describe_error(error)}") from error
    methods = ("check", "prepare", "process_specs", "open")
    missing = [name for name in methods if name in lacking or not callable(getattr(launcher, name, None))]
    if missing:
        raise ConfigError(f"strategy.launcher={path}: has no {', '.join(missing)}; see docs/extending.md")
    return launcher
