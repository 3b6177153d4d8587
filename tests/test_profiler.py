"""`profiler=true` leaves the framework's own trace of three steps, which are in no timed figure."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from src.run.tables import read_table
from tests.support import SHORT, assert_opens_in_perfetto

WORDS = ("model=mlp", "workers=2", "out=run", "profiler=true", *SHORT)


def torch_events(path: Path) -> Counter[str]:
    """How often each thing happened in a trace of torch's."""
    with gzip.open(path, "rt") as file:
        return Counter(event["name"] for event in json.load(file)["traceEvents"] if "name" in event)


def named(path: Path, name: str) -> list[tuple[int, int]]:
    """Return when each thing of that name was in a trace of torch's, in nanoseconds since 1970."""
    with gzip.open(path, "rt") as file:
        trace = json.load(file)
    return [
        tuple(
            trace["baseTimeNanoseconds"] + round(1000 * moment)
            for moment in (event["ts"], event["ts"] + event["dur"])
        )
        for event in trace["traceEvents"]
        if event["name"] == name
    ]


def test_each_rank_of_torch_has_three_steps_in_its_trace_and_in_mlflow(commands: Any, mnist: None) -> None:
    ended = commands.run("strategy=ddp", *WORDS, "tracking.backend=sqlite")
    assert ended.returncode == 0, ended.stderr
    folder = commands.folder / "run"
    names = ("rank-0.json.gz", "rank-1.json.gz", "all-ranks.json.gz", "exchange.csv", "steps.csv")
    for name in names[:2]:
        assert torch_events(folder / "profile" / name)["Optimizer.step#SGD.step"] == 3
    metrics = json.loads((folder / "metrics.json").read_text())
    client = MlflowClient(f"sqlite:///{commands.folder}/mlflow.db")
    artifacts = {item.path for item in client.list_artifacts(metrics["mlflow_run_id"], "profile")}
    assert artifacts == {f"profile/{name}" for name in names}
    # Neither the profiled steps nor the writing of the trace are in the window of the figures.
    assert metrics["timed_steps"] == 60 - 5
    assert "  slowest rank: " in ended.stdout
    check_all_ranks(folder / "profile", parameters=metrics["parameters"])


def check_all_ranks(folder: Path, parameters: int) -> None:
    """Check the trace of two ranks of `ddp`, which average `parameters` in shared memory, and its tables."""
    with gzip.open(folder / "all-ranks.json.gz", "rt") as file:
        trace = json.load(file)
    assert_opens_in_perfetto(trace)
    events = trace["traceEvents"]
    lanes = {
        (event["pid"], event["args"]["name"]): event["tid"]
        for event in events
        if event["name"] == "thread_name"
    }

    def spans(rank: int, lane: str) -> list[tuple[float, float]]:
        return [
            (event["ts"], event["ts"] + event["dur"])
            for event in events
            if event["ph"] == "X" and (event["pid"], event["tid"]) == (rank, lanes[rank, lane])
        ]

    for rank in (0, 1):
        assert len(spans(rank, "steps")) == 3
        # Losses and layers of three steps.
        assert len(spans(rank, "compute")) > 3 * 10
        assert spans(rank, "input") and spans(rank, "waiting")
        # The profiler's clock is the recorder's: to a millisecond, an update lies in its step.
        updates = sorted(named(folder / f"rank-{rank}.json.gz", "Optimizer.step#SGD.step"))
        zero = trace["baseTimeNanoseconds"]
        for (begin, end), step in zip(updates, spans(rank, "steps"), strict=True):
            assert step[0] < (begin - zero) / 1000 + 1000 and (end - zero) / 1000 < step[1] + 1000
    first, second = (spans(rank, "all_reduce, shared memory") for rank in (0, 1))
    assert len(first) == len(second) >= 3
    # No rank leaves an all-reduce before the other one has come: on one clock they overlap.
    assert all(a[0] < b[1] and b[0] < a[1] for a, b in zip(first, second, strict=True))
    for row in read_table(folder / "exchange.csv"):
        assert 0 <= row["hidden_seconds"] <= row["seconds"]
        if row["group"] == "shared memory":
            # A rank that adds up the others' blocks computes nothing of its own.
            assert (row["hidden_seconds"], row["count"]) == (0, len(first))
            assert row["bytes"] == 3 * 4 * parameters
    rows = read_table(folder / "steps.csv")
    assert [(row["step"], row["rank"]) for row in rows] == [(s, r) for s in (2, 3, 4) for r in (0, 1)]
    for row in rows:
        parts = sum(row[f"{part}_seconds"] for part in ("compute", "input", "waiting"))
        assert 0 < parts <= row["seconds"]
        assert row["hidden_seconds"] <= row["exchange_seconds"]
    for step in (2, 3, 4):
        assert sum(row["slowest"] for row in rows if row["step"] == step) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (("strategy=fsdp",), {("all_gather", "shard"), ("reduce_scatter", "shard")}),
        (
            ("strategy=hybrid", "strategy.tensor=2", "microbatches=1", "workers=4"),
            {("all_reduce", "tensor"), ("all_reduce", "data")},
        ),
    ],
    ids=["shards", "copies of parts"],
)
def test_a_trace_and_mlflow_tell_exchanges_by_axis(
    words: tuple[str, ...], kinds: set[tuple[str, str]], commands: Any, mnist: None
) -> None:
    ended = commands.run(*WORDS, *words, "model.dropout=0", "tracking.backend=sqlite")
    assert ended.returncode == 0, ended.stderr
    folder = commands.folder / "run"
    with gzip.open(folder / "profile/all-ranks.json.gz", "rt") as file:
        assert_opens_in_perfetto(json.load(file))
    by_rank: dict[tuple[str, str], dict[float, float]] = {}
    for row in read_table(folder / "profile/exchange.csv"):
        by_rank.setdefault((row["kind"], row["group"]), {})[row["rank"]] = row["bytes"]
    metrics = json.loads((folder / "metrics.json").read_text())
    # Besides, ranks agree on losses, and on whether to go on.
    assert kinds <= by_rank.keys() and {group for _, group in by_rank.keys() - kinds} <= {None, "all ranks"}
    assert all(len(found) == metrics["workers"] for found in (by_rank[kind] for kind in kinds))
    counted = {
        (row["kind"], row["axis"]): row["bytes"]
        for row in read_table(folder / "exchange.csv")
        if row["rank"] == 0
    }
    # Three steps were profiled.
    assert {kind: by_rank[kind][0] for kind in kinds} == {kind: 3 * size for kind, size in counted.items()}
    logged = MlflowClient(f"sqlite:///{commands.folder}/mlflow.db").get_run(metrics["mlflow_run_id"]).data
    axes = {axis for _, axis in kinds}
    assert {axis: logged.metrics[f"{axis}_exchange_bytes"] for axis in axes} == {
        axis: sum(size for (_, along), size in counted.items() if along == axis) for axis in axes
    }
    assert logged.params["strategy"] == words[0].removeprefix("strategy=")


@pytest.mark.slow
def test_workers_of_a_server_profile_themselves(commands: Any, mnist: None) -> None:
    ended = commands.run("strategy=parameter_server", *WORDS, "tracking.backend=none")
    assert ended.returncode == 0, ended.stderr
    folder = commands.folder / "run/profile"
    traces = sorted(folder.glob("rank-*"))
    assert [trace.name for trace in traces] == ["rank-0.json.gz", "rank-1.json.gz"]
    kinds = {(row["kind"], row["group"]) for row in read_table(folder / "exchange.csv")}
    assert kinds == {("fetch", "servers"), ("push", "servers")}
    for trace in traces:
        # A forward pass has two layers, and so has its backward pass.
        assert torch_events(trace)["aten::addmm"] == 3 * 2


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["tf_single", "tf_multiworker"])
def test_tensorflows_trace_is_its_profilers(strategy: str, commands: Any, mnist: None) -> None:
    workers = ("workers=1",) if strategy == "tf_single" else ()
    ended = commands.run(f"strategy={strategy}", *WORDS, *workers, "tracking.backend=none")
    assert ended.returncode == 0, ended.stderr
    traces = list((commands.folder / "run/profile").glob("rank-*/plugins/profile/*/*.xplane.pb"))
    assert len(traces) == (1 if strategy == "tf_single" else 2)
    assert all(b"MatMul" in trace.read_bytes() for trace in traces)
    folder = commands.folder / "run/profile"
    with gzip.open(folder / "all-ranks.json.gz", "rt") as file:
        assert_opens_in_perfetto(json.load(file))
    steps, exchanges = read_table(folder / "steps.csv"), read_table(folder / "exchange.csv")
    assert len(steps) == 3 * len(traces)
    assert all(0 < row["compute_seconds"] <= row["seconds"] for row in steps)
    # The gradients of each step, and losses as far as they are there before the trace ends.
    assert [row["kind"] for row in exchanges] == ([] if strategy == "tf_single" else ["all_reduce"] * 2)
    assert all(3 <= row["count"] <= 2 * 3 for row in exchanges)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("strategy=tf_parameter_server",), "profiler=true: the steps of strategy tf_parameter_server can't"),
        (("hardware.warmup_steps=4",), "hardware.warmup_steps=4: profiler=true needs 5 at least"),
    ],
)
def test_what_cannot_be_profiled_is_refused_in_a_line(
    words: tuple[str, ...], says: str, commands: Any
) -> None:
    ended = commands.run("profiler=true", *words)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"error: {says}")
    assert list(commands.folder.iterdir()) == []
