"""Install what tests of clusters need, and others don't: Ray beside this Python, Slurm on this machine."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from src.launch.cluster import ray_engine
from tests.cluster.boot import environment_folders, package_folders
from tests.cluster.network import ROOT

CONSTRAINTS = ROOT / "constraints.txt"
# Where the constraints have no other one.
RAY = "ray==2.60.0"
SLURM_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")
SLURM_PACKAGES = ("munge", "slurmctld", "slurmd", "slurm-client")
ADMINISTRATION = "/usr/local/sbin:/usr/sbin:/sbin"
# Another apt-get may be at work.
APT = ["apt-get", "--quiet", "-o", "DPkg::Lock::Timeout=120"]


class NotInstalled(Exception):
    """The error where something is missing and can't be installed; its text has the reason."""


def python_with_ray(folder: Path) -> Path:
    """Return this Python if it has Ray, else one in `folder`, which is made if it isn't there.

    That one sees all packages of this one, and has Ray and what Ray needs besides.

    Raises:
        NotInstalled: where that fails, as without a network.
    """
    if ray_engine.is_installed():
        return Path(sys.executable)
    python = folder / "environment/bin/python"
    wanted = " ".join([ray_requirement(), *map(str, environment_folders())])
    installed = folder / "installed"
    # Other tests may be at it.
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.exists() or installed.read_text() != wanted:
            installed.unlink(missing_ok=True)
            _make(python)
            installed.write_text(wanted)
    return python


def ray_requirement() -> str:
    """Return which Ray is installed: the one of constraints.txt, if it has any."""
    return next((line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("ray==")), RAY)


def ensure_slurm() -> None:
    """Install Slurm by apt-get, unless its programs are there.

    Raises:
        NotInstalled: where that fails, as on another system than Debian.
    """
    path = f"{os.environ.get('PATH', os.defpath)}:{ADMINISTRATION}"
    if all(shutil.which(program, path=path) for program in SLURM_PROGRAMS):
        return
    # What packages start at once ends with the installation: tests start their own.
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    install = [*alone, *APT, "install", "--yes", "--no-install-recommends", *SLURM_PACKAGES]
    try:
        _run(install)
    except NotInstalled:
        # The lists of packages may be missing, or old.
        _run([*APT, "update"])
        _run(install)


def _make(python: Path) -> None:
    """Make the environment that has this Python, and install Ray there."""
    _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(python.parents[1])])
    own = _run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    Path(own, "beside.pth").write_text("\n".join(map(str, package_folders())))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--quiet"]
    _run([*pip, "install", "--constraint", str(CONSTRAINTS), ray_requirement()])


def _run(command: list[str]) -> str:
    """Run a command, and return what it prints.

    Raises:
        NotInstalled: where it fails, or isn't there.
    """
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    except FileNotFoundError as error:
        raise NotInstalled(f"the program {command[0]} is missing") from error
    if done.returncode:
        last = (done.stderr.strip() or str(done.returncode)).splitlines()[-1]
        raise NotInstalled(f"{' '.join(command)}: {last}")
    return done.stdout
