"""A checkpoint for which there is no room says so, whatever the library that writes it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from src.runtime.common import last_good


@pytest.mark.parametrize("full", [True, False])
def test_a_library_s_error_is_that_of_a_full_disk_where_the_disk_is_full(
    tmp_path: Path, disk: Path, full: bool
) -> None:
    folder = disk if full else tmp_path
    path = folder / "checkpoint.pt"
    path.write_text("the last good one")
    kind, text = (OSError, "No space") if full else (RuntimeError, "the writer")
    with pytest.raises(kind, match=text), last_good.newer(path, present=1) as temporary:
        temporary.write_text("half of")
        raise RuntimeError("the writer failed")
    assert [each.read_text() for each in folder.iterdir()] == ["the last good one"]
