"""A run's directory is claimed, replaced as a whole or refused; never mixed with something else."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from src.config import Config, ConfigError, command_line, compose
from src.run import directory
from src.run.directory import RunDirectory, check_out, recover, status_of
from src.run.directory_lock import reserve
from src.run.tables import write_text
from tests.support import fill

Make = Callable[..., Config]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A configuration whose `out` is `run`, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    (config,) = compose.cells(command_line.parse(["hardware.device=cpu", "out=run"]))
    return lambda **changed: dataclasses.replace(config, **changed)


def complete(config: Config, status: str = "ok") -> RunDirectory:
    place = RunDirectory.claim(config)
    write_text(place.work / "metrics.json", json.dumps({"status": status}))
    if status != "failed":
        place.commit()
    return place


def there(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "config.yaml").read_text())


def test_a_claimed_directory_holds_its_configuration_and_room_for_records(make: Make) -> None:
    config = make()
    place = RunDirectory.claim(config)
    assert (place.work, place.final) == (Path("run"), Path("run"))
    assert {path.name for path in place.work.iterdir()} == {"config.yaml", "logs", "ranks"}
    assert Config(**there(place.work)) == config
    check_out(config)


def test_ctrl_c_while_a_directory_is_made_leaves_none(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(directory, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        RunDirectory.claim(make())
    assert list(Path().iterdir()) == []


def test_a_complete_run_stands_until_the_next_one_is_complete(make: Make) -> None:
    complete(make())
    second = RunDirectory.claim(make(seed=1))
    assert second.work != second.final
    assert (there(second.final)["seed"], status_of(second.final)) == (0, "ok")
    write_text(second.work / "metrics.json", json.dumps({"status": "time_limit"}))
    second.commit()
    assert (there(second.final)["seed"], status_of(second.final)) == (1, "time_limit")
    assert [path.name for path in Path().iterdir()] == ["run"]


@pytest.mark.parametrize("left", ["nothing", "failed", "torn"])
def test_what_is_not_complete_is_written_over(make: Make, left: str) -> None:
    place = complete(make(), "failed") if left == "failed" else RunDirectory.claim(make())
    if left == "torn":
        (place.work / "metrics.json").write_text('{"status": "o')
    (place.work / "steps.csv").write_text("old")
    again = RunDirectory.claim(make())
    assert again.work == again.final
    assert not (again.work / "steps.csv").exists()


def test_what_an_earlier_replacement_left_is_in_nobodys_way(make: Make) -> None:
    complete(make())
    RunDirectory.claim(make())
    Path("run.replaced").mkdir()
    complete(make())
    assert [path.name for path in Path().iterdir()] == ["run"]


@pytest.mark.parametrize("earlier", [False, True], ids=["alone", "in the place of an older run"])
def test_an_interrupted_run_goes_on_with_its_records_and_no_other_one_does(make: Make, earlier: bool) -> None:
    if earlier:
        complete(make(epochs=5))
    assert RunDirectory.reclaim(make()) is None
    place = RunDirectory.claim(make())
    (place.work / "ranks" / "0").mkdir()
    assert RunDirectory.reclaim(make()) == place
    assert (place.work / "ranks" / "0").exists()
    assert RunDirectory.reclaim(make(batch=64)) is None
    # Its records are merged.
    complete(make())
    (Path("run") / "ranks").rmdir()
    assert RunDirectory.reclaim(make()) is None


def test_another_configuration_is_refused_and_the_difference_named(make: Make) -> None:
    complete(make())
    with pytest.raises(ConfigError, match=r"another configuration \(seed: 0 there, 1 here\).*overwrite=true"):
        check_out(make(seed=1))
    check_out(make(seed=1, overwrite=True))
    # Where a run goes and how it is tracked doesn't change what it computes.
    check_out(make(tracking={"backend": "none", "study": "small"}))


def test_tuples_and_lists_are_the_same_configuration(make: Make) -> None:
    changed = {**make().strategy, "partition": (1, 2)}
    complete(make(strategy={**changed, "partition": [1, 2]}))
    check_out(make(strategy=changed))
    with pytest.raises(ConfigError, match=r"strategy.partition: \[1, 2\] there, None here"):
        check_out(make())


@pytest.mark.parametrize("config", [None, "", "a: 1\n", "- strategy\n", "\tno yaml", "\udcff"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_files_are_refused_even_when_asked_to_overwrite(
    make: Make, config: str | None, overwrite: bool
) -> None:
    Path("run").mkdir()
    check_out(make(overwrite=overwrite))
    Path("run/thesis.tex").write_text("years of work")
    if config is not None:
        Path("run/config.yaml").write_bytes(config.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match="not a run's"):
        check_out(make(overwrite=overwrite))


def test_files_and_folders_that_hold_everything_are_refused(make: Make) -> None:
    Path("file").touch()
    for out, reason in (("file", "is a file"), (".", "stand in"), ("..", "stand in"), ("/", "stand in")):
        with pytest.raises(ConfigError, match=f"out={out}: .*{reason}"):
            check_out(make(out=out, overwrite=True))


def test_a_file_is_written_whole_or_not_at_all(disk: Path) -> None:
    path = disk / "metrics.json"
    write_text(path, "first")
    filler = fill(disk)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "second")
    assert path.read_text() == "first"
    assert set(disk.iterdir()) == {path, filler}


def test_no_disk_space_leaves_nothing_that_the_next_run_would_refuse(make: Make, disk: Path) -> None:
    fill(disk)
    config = make(out=f"{disk}/run")
    with pytest.raises(OSError, match="No space"):
        RunDirectory.claim(config)
    check_out(config)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"ok"'])
def test_a_status_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    assert status_of(tmp_path) is None
    (tmp_path / "metrics.json").write_text(text)
    assert status_of(tmp_path) is None


def test_a_run_is_complete_whenever_the_command_that_replaces_it_is_killed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(make())

    class Killed(BaseException):
        pass

    for exchanges in (True, False):
        if not exchanges:
            monkeypatch.setattr(directory, "swap_directories", lambda first, second: False)
        # The command is killed before its first step, before its second one, and so on.
        for survived in range(20):
            place = RunDirectory.claim(make(seed=survived))
            write_text(place.work / "metrics.json", json.dumps({"status": "ok"}))
            left = iter(range(survived))

            def step(do: Callable[..., Any], left: Any = left) -> Callable[..., Any]:
                def maybe(*arguments: Any, **options: Any) -> Any:
                    if next(left, None) is None:
                        raise Killed
                    return do(*arguments, **options)

                return maybe

            with monkeypatch.context() as patched, contextlib.suppress(Killed):
                for owner, name in (
                    (directory, "swap_directories"),
                    (os, "replace"),
                    (os, "unlink"),
                    (os, "rmdir"),
                ):
                    patched.setattr(owner, name, step(getattr(owner, name)))
                place.commit()
                # It came to its end.
                break
            if exchanges:
                assert status_of(Path("run")) == "ok"
            recover(Path("run"))
            assert status_of(Path("run")) == "ok"
            check_out(make(seed=survived, overwrite=True))
        else:
            raise AssertionError("it never ended")
        assert survived > 5
        assert [path.name for path in Path().iterdir()] == ["run"]


def test_a_symbolic_link_stays_one(make: Make) -> None:
    for target in ("there", "nowhere"):
        Path("run").unlink(missing_ok=True)
        Path("run").symlink_to(target)
        if target == "there":
            Path("there").mkdir()
        for seed in range(2):
            complete(make(seed=seed))
            assert there(Path(target))["seed"] == seed
        assert Path("run").is_symlink()
        assert status_of(Path("run")) == "ok"


@pytest.mark.parametrize("name", ["run.partial", "run.replaced"])
@pytest.mark.parametrize("kind", ["file", "link", "directory"])
def test_somebody_s_files_in_the_way_are_named_and_left(make: Make, name: str, kind: str) -> None:
    complete(make())
    path = Path(name)
    if kind == "file":
        path.write_text("years of work")
    elif kind == "link":
        path.symlink_to("elsewhere")
    else:
        path.mkdir()
        (path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=f"out=run: {name} is in the way"):
        reserve([make()])
    assert os.path.lexists(path)
    assert not Path(".run.lock").exists()
