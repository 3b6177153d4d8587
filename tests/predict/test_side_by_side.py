"""Processes that look at steps begin, do jobs, tell of what fails, and are gone, whatever happens."""

from __future__ import annotations

from multiprocessing import active_children

import pytest

from src.config import ConfigError
from src.predict import side_by_side
from src.predict.side_by_side import Job


@pytest.fixture(autouse=True)
def _light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes import nothing that takes long, of which this one knows nothing."""
    monkeypatch.setattr(side_by_side, "LOOKS", "sndhdr")
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: (0, 1))


def test_jobs_are_done_and_processes_are_gone() -> None:
    jobs = {"single": Job("builtins.range", (3,)), "ddp": Job("os.getenv", ("CUDA_VISIBLE_DEVICES", "?"))}
    with side_by_side.processes(2) as pool:
        assert len(active_children()) == 2
        # No GPU is seen: of an empty text nothing is listed.
        assert dict(side_by_side.every(jobs, pool)) == {"single": [0, 1, 2], "ddp": []}
    assert not active_children()


def test_a_mistake_while_they_begin_leaves_none() -> None:
    with pytest.raises(ConfigError, match="so it is"), side_by_side.processes(2):
        raise ConfigError("so it is")
    assert not active_children()


def test_what_they_can_not_import_fails_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "LOOKS", "no_such_package.looks")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"), side_by_side.processes(2) as pool:
        list(side_by_side.every({"single": Job("no_such_package.looks", ())}, pool))
    assert not active_children()


def test_one_job_is_done_here() -> None:
    with side_by_side.processes(1) as pool:
        assert pool is None
        assert list(side_by_side.every({"single": Job("builtins.range", (2,))}, None)) == [("single", [0, 1])]
    assert not active_children()
