"""Machines, Ray and Slurm for the tests of a file, which is skipped with the reason where they can't be."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from src.machine.link import Link
from src.machine.namespaces import NotAllowed
from tests.cluster.installing import NotInstalled, ensure_slurm, python_with_ray
from tests.cluster.machines import Machines
from tests.cluster.ray_cluster import RayCluster
from tests.cluster.slurm import Slurm

NewMachines = Callable[..., Machines]


@pytest.fixture(scope="session")
def ray_folder(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Ray is installed if this Python hasn't it, once for all sessions."""
    cache: pytest.Cache | None = getattr(pytestconfig, "cache", None)
    return cache.mkdir("ray") if cache else tmp_path_factory.mktemp("ray")


@pytest.fixture(scope="session")
def ray_python(ray_folder: Path) -> Path:
    """A Python that has Ray."""
    try:
        return python_with_ray(ray_folder)
    except NotInstalled as error:
        pytest.skip(f"no Ray: {error}")


@pytest.fixture(scope="module")
def new_machines(ray_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewMachines]:
    """Makes machines, of which the first sees the tests' folders; they end with the file's tests."""
    with contextlib.ExitStack() as made:

        def make(count: int = 2, link: Link | None = None) -> Machines:
            try:
                machines = Machines(count, [tmp_path_factory.getbasetemp()], [ray_folder], link)
            except NotAllowed as error:
                pytest.skip(f"no emulated machines here: {error}")
            made.callback(machines.close)
            return machines

        yield make


@pytest.fixture(scope="module")
def machines(new_machines: NewMachines) -> Machines:
    """Two machines."""
    return new_machines()


@pytest.fixture(scope="module")
def ray_cluster(new_machines: NewMachines, request: pytest.FixtureRequest) -> RayCluster:
    """Ray on two machines."""
    machines = new_machines()
    # Nothing is installed where machines can't be.
    return RayCluster(machines, request.getfixturevalue("ray_python"))


@pytest.fixture(scope="module")
def slurm(new_machines: NewMachines) -> Slurm:
    """Slurm on two machines."""
    machines = new_machines()
    try:
        ensure_slurm()
    except NotInstalled as error:
        pytest.skip(f"no Slurm: {error}")
    return Slurm(machines)
