"""An error says how a process ended, whatever its class; a status counts if it was announced."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from src.run import exit_status


class ResourceExhaustedError(Exception):
    """As TensorFlow has it, for memory and for disks."""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), exit_status.DISK_FULL),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), exit_status.DISK_FULL),
        (ResourceExhaustedError("/out/x; No space left on device"), exit_status.DISK_FULL),
        (ResourceExhaustedError("OOM when allocating tensor"), exit_status.OUT_OF_MEMORY),
        (MemoryError(), exit_status.OUT_OF_MEMORY),
        (OSError(errno.EACCES, os.strerror(errno.EACCES)), exit_status.CRASH),
        (SystemExit(0), exit_status.CRASH),
        (RuntimeError("the glue has not dried"), exit_status.CRASH),
    ],
    ids=repr,
)
def test_an_error_has_a_status(error: BaseException, status: int) -> None:
    assert exit_status.of_error(error) == status


def test_a_status_counts_if_it_was_announced(tmp_path: Path) -> None:
    end = tmp_path / "rank-0.end"
    for code in (exit_status.OK, exit_status.OUT_OF_MEMORY, exit_status.DISK_FULL, exit_status.MISTAKE):
        assert exit_status.confirmed(end, code) == code + exit_status.UNANNOUNCED
        exit_status.reserve(end)
        assert exit_status.confirmed(end, code) == code + exit_status.UNANNOUNCED
        exit_status.announce(end, code)
        assert exit_status.confirmed(end, code) == code
        # The process is started again.
        exit_status.reserve(end)
        assert exit_status.confirmed(end, code) != code
        end.unlink()
    # A crash is one without a word.
    assert [exit_status.confirmed(end, code) for code in (1, 5, -9)] == [1, 5, -9]
