"""An error says how a process ended, whatever its class; a status counts if it was announced."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from src.config import ConfigError
from src.run import files
from src.run.status import MEASURED, UNANNOUNCED, Status, announce, confirmed, of_error, reserve


class ResourceExhaustedError(Exception):
    """As TensorFlow has it, for memory and for disks."""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), Status.DISK_FULL),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), Status.DISK_FULL),
        (ResourceExhaustedError("/out/x; No space left on device"), Status.DISK_FULL),
        (ResourceExhaustedError("OOM when allocating tensor"), Status.OUT_OF_MEMORY),
        (MemoryError(), Status.OUT_OF_MEMORY),
        (OSError(errno.EACCES, os.strerror(errno.EACCES)), Status.FAILED),
        (SystemExit(0), Status.FAILED),
        (RuntimeError("the glue has not dried"), Status.FAILED),
    ],
    ids=repr,
)
def test_an_error_has_a_status(error: BaseException, status: Status) -> None:
    assert of_error(error) == status


def test_a_status_counts_if_it_was_announced(tmp_path: Path) -> None:
    end = tmp_path / "rank-0.end"
    for code in (
        Status.OK.process,
        Status.OUT_OF_MEMORY.process,
        Status.DISK_FULL.process,
        Status.MISTAKE.process,
    ):
        assert confirmed(end, code) == code + UNANNOUNCED
        reserve(end)
        assert confirmed(end, code) == code + UNANNOUNCED
        announce(end, code)
        assert confirmed(end, code) == code
        # The process is started again.
        reserve(end)
        assert confirmed(end, code) != code
        end.unlink()
    # A crash is one without a word.
    assert [confirmed(end, code) for code in (1, 5, -9)] == [1, 5, -9]


def test_a_way_to_end_has_one_word_for_processes_commands_and_files() -> None:
    assert {status: (status.process, status.command) for status in Status if status.process > 1} == {
        "out_of_memory": (77, 0),
        "disk_full": (78, 1),
        "mistake": (79, ConfigError.exit_status),
    }
    assert files.MISTAKE == "mistake.txt"
    assert [status for status in Status if status.command == 0] == [*MEASURED, "out_of_memory", "skipped"]
