"""`python -m src.predict --profile ...` as it is typed: a table, the ledger, and mistakes in a line."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from pathlib import Path

import pytest
import yaml

from src.machine.devices import processor
from src.measure.software import software_of
from src.predict import __main__ as command
from tests.predict.own import made
from tests.support import config

RUN = ("model=mlp", "dataset=synthetic", "hardware.device=cpu", "batch=8")
DDP = ("strategy=ddp", "workers=2")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to type in, with a profile of ddp and of a pipeline."""
    monkeypatch.chdir(tmp_path)
    points = [
        made.steps_point(config(*RUN, *DDP), 0.1),
        made.operations_point(config(*RUN, "strategy=pipeline", "microbatches=4")),
    ]
    (tmp_path / "profile").mkdir()
    made.profile(*points, seconds_per_mib=0.01).write(tmp_path / "profile/profile.json")
    return tmp_path


def answer(
    path: Path, seconds: float, *words: str, began: float | None = None, **environment: object
) -> None:
    """A finished run of ddp by this software on this machine, whose steps took so long."""
    path.mkdir(parents=True)
    run = config(*RUN, *DDP, *words)
    (path / "config.yaml").write_text(yaml.safe_dump(dataclasses.asdict(run)))
    (path / "metrics.json").write_text(json.dumps({"status": "ok", "step_seconds_median": seconds}))
    begin = time.time() if began is None else began
    (path / "trace.csv").write_text(f"time,rank\n{begin},0\n{begin + 1},0\n")
    around = {
        "software": software_of(run),
        "processors": {"model": processor(), "usable": [0, 1]},
        "gpus": [],
        **environment,
    }
    (path / "environment.json").write_text(json.dumps(around))


def test_a_sweep_is_predicted_and_comes_true_in_the_ledger(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--profile", "profile", *RUN, "strategy=ddp,pipeline", "workers=2"]
    assert command.main(words) == 0
    said = capsys.readouterr().out
    rows = [line for line in said.splitlines() if re.match(r" *(ddp|pipeline)-mlp", line)]
    assert len(rows) == 2 and all("measured" in row for row in rows)
    assert "ddp shared memory: none of its kind has been run; no run was measured" in said
    first = (folder / "predictions.csv").read_text()
    assert len(first.splitlines()) == 3
    # A run of before is no answer, and neither is one of another machine or number of workers.
    answer(folder / "runs/old", 9.0, began=1e9)
    answer(folder / "runs/other", 9.0, processors={"model": "other", "usable": [0, 1]})
    answer(folder / "runs/weak", 9.0, "scaling=weak")
    answer(folder / "runs/ddp", 1.5)
    # What is asked of another machine is no prediction of this one, but what has come is noted.
    assert command.main([*words, "--what-if", "compute=2x"]) == 0
    assert "ddp shared memory: 1 of its kind: median " in capsys.readouterr().out
    assert len((folder / "predictions.csv").read_text().splitlines()) == 3
    assert command.main(["--ledger"]) == 0
    said = capsys.readouterr().out
    assert "1500 ms" in said and "pipeline gpipe: none of its kind has been run" in said


def test_runs_calibrate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(folder / "runs/ddp", 1.9)
    words = ["--profile", "profile", *RUN, *DDP]
    assert command.main(words) == 0
    alone = capsys.readouterr().out
    assert command.main([*words[:2], "--runs", "runs", *words[2:]]) == 0
    seen = capsys.readouterr().out
    assert "1 runs were measured, which are few" in seen and "calibrated" in seen
    answer(folder / "runs/crowded", 9.0, processors={"model": processor(), "usable": [0]})
    answer(folder / "runs/changed", 9.0, software={"files": {}, "libraries": {}})
    answer(folder / "runs/other", 9.0, processors={"model": "other", "usable": [0, 1]})
    (folder / "runs/broken").mkdir()
    (folder / "runs/broken/metrics.json").write_text("{")
    (folder / "runs/broken/config.yaml").write_text("a: [")
    assert command.main([*words[:2], "--runs", "runs", *words[2:]]) == 0
    captured = capsys.readouterr()
    assert captured.out == seen
    reasons = ("its workers shared devices", "computed by other code", "ran on another machine (other)")
    assert len(captured.err.splitlines()) == 3 and all(each in captured.err for each in reasons)

    def seconds(said: str) -> float:
        found = re.search(r"([\d.]+) ms", said)
        assert found is not None
        return float(found[1])

    assert abs(seconds(seen) - 1900) < abs(seconds(alone) - 1900)


def test_simulated_steps_are_written_as_traces(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*RUN, "strategy=ddp,pipeline", "workers=2", "--timelines", "traces"]
    assert command.main(["--profile", "profile", *words]) == 0
    traces = {
        path.stem.partition("-")[0]: json.loads(path.read_text()) for path in (folder / "traces").iterdir()
    }
    assert set(traces) == {"ddp", "pipeline"}
    for trace in traces.values():
        events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        assert {event["pid"] for event in events} == {0, 1}
        assert all(event["dur"] > 0 for event in events)
    names = {event["name"] for event in traces["pipeline"]["traceEvents"]}
    assert {"forward 0", "backward 3", "optimizer"} <= names


def test_a_faster_machine_takes_less_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for changes in ([], ["--what-if", "compute=2x"], ["--what-if", "compute=2x", "link=4x"]):
        assert command.main(["--profile", "profile", *changes, *RUN, *DDP]) == 0
        match = re.search(r"([\d.]+) ms", capsys.readouterr().out)
        assert match is not None
        found.append(float(match[1]))
    assert found[0] > found[1] > found[2]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "error: say one of --profile PROFILE with words, --rows IN --out OUT, --ledger, and words with"),
        (["--ledger", "--rows", "a.csv"], "error: say one of --profile"),
        (["--rows", "a.csv"], "error: --rows: needs --out"),
        (["--rows", "a.csv", "--out", "b.csv", "batch=8"], "error: batch=8: is of --profile, not of --rows"),
        (["--profile", "profile", "--out", "b.csv"], "error: --out: is of --rows"),
        (["--profile", "nowhere", *RUN], "error: nowhere: can't be read: No such file or directory"),
        (["--profile", "profile", "--runs", "nowhere", *RUN, *DDP], "error: --runs nowhere: is no folder"),
        (["--profile", "profile", *RUN, "strategy=dpd"], "error: strategy=dpd: no such strategy"),
        (
            ["--profile", "profile", "--what-if", "compute=fast", *RUN],
            "error: --what-if compute=fast: say how",
        ),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(says)
    assert not (folder / "predictions.csv").exists()


def test_what_cannot_be_predicted_is_said_and_the_rest_is_predicted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--profile", "profile", *RUN, "workers=2"]
    assert command.main([*words, "strategy=ddp,fsdp"]) == 0
    assert "not with strategy=fsdp; profile that, too" in capsys.readouterr().out
    assert command.main([*words, "strategy=fsdp"]) == 1
