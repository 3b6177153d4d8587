"""Devices that one command has taken, and another can't have: real locks, on cores that are made up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from src.machine import device_locks, devices
from src.machine.device_locks import NoFolder, Request, Taken, take
from tests import support
from tests.nvidia_driver import Driver


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install_driver: Callable[..., Driver]) -> Path:
    """Four cores, two GPUs and no locks yet."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(devices, "usable_cores", lambda: [0, 1, 2, 3])
    install_driver("GPU-a", "GPU-b")
    return tmp_path


def cpus(
    count: int = 1, *, size: int = 1, numbers: tuple[int, ...] | None = None, shared: bool = False
) -> Request:
    return Request("cpu", size, numbers, shared, count)


def gpus(count: int = 1, *, numbers: tuple[int, ...] | None = None) -> Request:
    return Request("gpu", 1, numbers, False, count)


def holder(
    *numbers: int, kind: str = "cpu", shared: str = "alone"
) -> AbstractContextManager[subprocess.Popen[str]]:
    """Another process that has taken devices, which must exist here in truth."""
    return support.holder("-m", "tests.machine.lock_holder", kind, shared, *map(str, numbers))


def test_each_command_has_the_first_free_devices() -> None:
    first, second = take([cpus(2)]), take([cpus(1)])
    assert [device.index for device in first.of(cpus(2))] == [0, 1]
    assert [device.index for device in second.of(cpus(1))] == [2]
    first.close()
    assert [device.index for device in take([cpus(1)]).of(cpus(1))] == [0]


def test_the_devices_of_a_sweep_are_those_of_its_largest_cell() -> None:
    lease = take([cpus(1), cpus(3), cpus(2)])
    assert [device.index for device in lease.of(cpus(3))] == [0, 1, 2]
    assert [device.index for device in lease.of(cpus(1))] == [0]
    assert [device.index for device in take([cpus(1)]).of(cpus(1))] == [3]


def test_devices_of_different_sizes_overlap_by_their_cores() -> None:
    first = take([cpus(numbers=(2,))])
    assert [device.cores for device in take([cpus(size=2)]).of(cpus(size=2))] == [(0, 1)]
    with pytest.raises(Taken, match=r"cpu device 0 is taken .*cpu device 1 is taken .*free: none"):
        take([cpus(size=2)])
    first.close()
    assert [device.cores for device in take([cpus(size=2)]).of(cpus(size=2))] == [(2, 3)]


def test_one_sweep_may_have_devices_of_both_sizes() -> None:
    lease = take([cpus(2), cpus(1, size=2)])
    assert [device.cores for device in lease.of(cpus(2))] == [(0,), (1,)]
    assert [device.cores for device in lease.of(cpus(1, size=2))] == [(0, 1)]


def test_all_or_none_are_taken() -> None:
    held = take([cpus(3)])
    with pytest.raises(Taken, match="free: 3"):
        take([cpus(2)])
    # The free one was not kept by the command that couldn't have two.
    take([cpus(numbers=(3,))]).close()
    held.close()


def test_those_that_share_have_a_device_together_and_from_others_apart() -> None:
    first, second = take([cpus(8, shared=True)]), take([cpus(2, shared=True)])
    assert len(first.of(cpus(8, shared=True))) == 4
    with pytest.raises(Taken):
        take([cpus()])
    first.close()
    assert [device.index for device in take([cpus(2)]).of(cpus(2))] == [2, 3]
    second.close()
    alone = take([cpus(2)])
    with pytest.raises(Taken):
        take([cpus(4, shared=True)])
    alone.close()


def test_gpus_share_cores_with_each_other_and_not_with_cpu_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    # With one core, both GPUs have it.
    monkeypatch.setattr(devices, "usable_cores", lambda: [0])
    first, second = take([gpus()]), take([gpus()])
    assert [lease.of(gpus())[0].index for lease in (first, second)] == [0, 1]
    with pytest.raises(Taken, match="cpu device 0"):
        take([cpus()])
    with pytest.raises(Taken, match=r"gpu device 0 .* gpu device 1"):
        take([gpus()])
    first.close()
    second.close()
    take([cpus()]).close()


def test_who_has_a_device_is_named(machine: Path) -> None:
    with holder(0) as process, pytest.raises(Taken) as raised:
        take([cpus(numbers=(0,))])
    name = Path(sys.executable).name
    command = f"{name} -m tests.machine.lock_holder cpu alone 0"
    assert str(raised.value) == f"cpu device 0 is taken by pid {process.pid} ({command}); free: 1, 2, 3"


def test_a_killed_command_leaves_no_lock() -> None:
    with holder(0) as process:
        process.kill()
        process.wait()
        take([cpus(numbers=(0,))]).close()


def test_children_do_not_hold_what_their_parent_has_taken() -> None:
    lease = take([cpus(numbers=(1,))])
    command = [sys.executable, "-c", "input()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, close_fds=False)
    lease.close()
    take([cpus(numbers=(1,))]).close()
    assert child.poll() is None
    child.communicate(b"\n")


def test_a_copy_of_the_file_in_a_child_that_was_just_forked_holds_no_lock() -> None:
    lease = take([cpus(numbers=(1,))])
    opened = {int(file.name): file.resolve() for file in Path("/proc/self/fd").iterdir()}
    copies = [os.dup(file) for file, path in opened.items() if path.parent == device_locks.folder()]
    assert copies
    lease.close()
    take([cpus(numbers=(1,))]).close()
    for copy in copies:
        os.close(copy)


def test_a_folder_that_others_may_write_to_is_refused(machine: Path) -> None:
    folder = device_locks.folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(NoFolder, match="you alone"):
        take([cpus()])
    folder.rmdir()
    folder.symlink_to(machine / "elsewhere")
    with pytest.raises(NoFolder):
        take([cpus()])


def test_without_a_runtime_folder_it_is_one_of_the_users_own(machine: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(machine)}
    del environment["XDG_RUNTIME_DIR"]
    code = "from src.machine import device_locks; print(device_locks.folder())"
    completed = subprocess.run(
        [sys.executable, "-c", code], cwd=support.ROOT, env=environment, stdout=subprocess.PIPE, check=True
    )
    folder = Path(completed.stdout.decode().rstrip())
    assert folder == machine / f"scaleguide-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_gpu_is_the_same_one_whatever_its_number_is_to_another_command(
    install_driver: Callable[..., Driver],
) -> None:
    lease = take([gpus(numbers=(1,))])
    # The other one sees this GPU alone, or first.
    install_driver("GPU-b")
    with pytest.raises(Taken):
        take([gpus()])
    lease.close()
    take([gpus()])
