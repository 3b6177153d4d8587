"""Traces of several ranks become one: on one clock, in lanes that don't overlap, whatever is missing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from src.measure import all_ranks
from src.measure.rank_profile import Span
from src.run.tables import read_table
from tests.support import assert_opens_in_perfetto

BASE = 1_790_857_026_000_000_000
MAIN, GLOO = 10, 11


def operation(begin: float, end: float, name: str = "aten::mm", thread: int = MAIN, **more: Any) -> Any:
    """Return an event of a trace, between two times in milliseconds."""
    times = {"ts": begin * 1000, "dur": (end - begin) * 1000}
    return {"ph": "X", "cat": "cpu_op", "pid": 5, "tid": thread, "name": name, **times, **more}


def exchange(begin: float, end: float, name: str, thread: int = GLOO) -> Any:
    arguments = {"Input Dims": [[3, 2]], "Input type": ["float"]}
    return operation(begin, end, name, thread, cat="user_annotation", args=arguments)


class Run:
    """The directory of a run whose ranks have left their profiles."""

    def __init__(self, out: Path) -> None:
        self.out = out
        (out / "profile").mkdir()

    def rank(self, rank: int, events: list[Any], activities: list[Any], ahead: float = 0) -> None:
        """Leave the trace and activities of a rank, whose clock is ahead by so many seconds."""
        trace = {
            "baseTimeNanoseconds": BASE + round(ahead * 1e9),
            "host_name": "here",
            "distributedInfo": {"world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]},
            "traceEvents": [{"ph": "M", "name": "process_name", "pid": 5, "ts": 0}, *events],
        }
        with gzip.open(self.out / f"profile/rank-{rank}.json.gz", "wt") as file:
            json.dump(trace, file)
        folder = self.out / f"ranks/{rank}"
        folder.mkdir(parents=True)
        base = BASE + round(ahead * 1e9)
        rows = [
            (activity, group, *(base + round(moment * 1e6) for moment in times), size)
            for activity, group, *times, size in activities
        ]
        (folder / "activities.json").write_text(json.dumps(rows))

    def lanes(self) -> dict[tuple[str, str], list[tuple[str, float, float]]]:
        """Return (name, begin, end) of what each lane has, in milliseconds, by (process, lane)."""
        with gzip.open(self.out / "profile/all-ranks.json.gz", "rt") as file:
            trace = json.load(file)
        assert_opens_in_perfetto(trace)
        names = {
            (event["name"], event["pid"], event["tid"]): event["args"]["name"]
            for event in trace["traceEvents"]
            if event["name"] in ("process_name", "thread_name")
        }
        found: dict[tuple[str, str], list[tuple[str, float, float]]] = {}
        for event in trace["traceEvents"]:
            if event["ph"] == "X":
                process = names["process_name", event["pid"], 0]
                lane = names["thread_name", event["pid"], event["tid"]]
                times = event["ts"] / 1000, (event["ts"] + event["dur"]) / 1000
                found.setdefault((process, lane), []).append((event["name"], *times))
        return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


STEP = ("step", "", 0, 10, 3)


def test_compute_is_the_outermost_operations_less_the_waits(run: Run) -> None:
    events = [
        operation(0, 5, "autograd::engine::evaluate_function: AddBackward0"),
        operation(1, 2, "aten::add"),
        # Its end is rounded to a nanosecond after that of the operation around it.
        operation(4, 5.000001, "aten::sub"),
        # A hook of DDP's waits for the others within an operation.
        operation(5, 9, "torch::autograd::AccumulateGrad"),
        operation(9, 9.5, "c10d::allreduce_"),
        operation(9.1, 9.2, "aten::empty"),
        exchange(9.2, 10, "gloo:all_reduce"),
        operation(9.3, 9.4, "aten::add", GLOO),
        operation(4, 9.6, "Optimizer.step", cat="user_annotation"),
    ]
    activities = [STEP, ("waiting", "", 6, 8, 0), ("all_reduce", "shared memory", 6, 8, 40)]
    run.rank(0, events, activities)
    all_ranks.write(run.out, [0], [])
    assert run.lanes() == {
        ("rank 0 (here)", "steps"): [("step 3", 0, 10)],
        ("rank 0 (here)", "compute"): [
            ("AddBackward0", 0, 5),
            ("torch::autograd::AccumulateGrad", 5, 6),
            ("torch::autograd::AccumulateGrad", 8, 9),
        ],
        ("rank 0 (here)", "all_reduce, all ranks"): [("all_reduce", 9.2, 10)],
        ("rank 0 (here)", "all_reduce, shared memory"): [("all_reduce", 6, 8)],
        ("rank 0 (here)", "waiting"): [("waiting", 6, 8)],
    }
    rows = read_table(run.out / "profile/exchange.csv")
    assert [(row["group"], row["count"], row["bytes"]) for row in rows] == [
        ("all ranks", 1, 24),
        ("shared memory", 1, 40),
    ]


def test_an_exchange_that_the_rank_tells_of_has_no_second_lane_of_its_backends(run: Run) -> None:
    events = [exchange(2.1, 2.9, "gloo:all_reduce"), exchange(3.1, 4.1, "gloo:all_reduce")]
    events += [exchange(5, 6, "gloo:all_gather")]
    run.rank(0, events, [STEP, ("reduce_scatter", "shard", 2, 3, 40), ("all_reduce", "data", 3, 4, 8)])
    all_ranks.write(run.out, [0], [])
    found = {lane: times for (_, lane), times in run.lanes().items() if lane not in ("steps", "waiting")}
    assert found == {
        "reduce_scatter, shard": [("reduce_scatter", 2, 3)],
        "all_reduce, data": [("all_reduce", 3, 4)],
        "all_gather, all ranks": [("all_gather", 5, 6)],
    }


def test_point_to_point_has_a_lane_for_each_other_rank_and_a_second_one_for_what_overlaps(run: Run) -> None:
    def send(begin: float, end: float, peer: str) -> list[Any]:
        start = operation(begin, begin + 0.2, "c10d::send", args={"Concrete Inputs": ["", "", peer, "0"]})
        return [start, exchange(begin + 0.1, end, "gloo:send", MAIN)]

    run.rank(0, [*send(0, 5, "1"), *send(1, 2, "1"), *send(3, 4, "2"), operation(1.5, 3)], [STEP])
    all_ranks.write(run.out, [0], [])
    lanes = {lane: times for (_, lane), times in run.lanes().items()}
    assert lanes["send, to rank 1"] == [("send", 0.1, 5)]
    assert lanes["send, to rank 1 (2)"] == [("send", 1.1, 2)]
    assert lanes["send, to rank 2"] == [("send", 3.1, 4)]
    # What is under way meanwhile hinders no operation of the same thread.
    assert lanes["compute"] == [("aten::mm", 1.5, 3)]
    hidden = {row["group"]: row["hidden_seconds"] for row in read_table(run.out / "profile/exchange.csv")}
    assert hidden == {"to rank 1": pytest.approx(0.0015), "to rank 2": 0}


def test_a_host_whose_clock_is_ahead_is_put_on_the_parents(run: Run) -> None:
    run.rank(0, [operation(1, 2)], [STEP])
    run.rank(1, [operation(1, 2)], [("waiting", "", 3, 4, 0), STEP], ahead=2.5)
    hosts = [
        {"name": "near", "clock_offset_seconds": 0.0, "processes": ["rank-0"]},
        {"name": "far", "clock_offset_seconds": 2.5, "processes": ["rank-1"]},
    ]
    all_ranks.write(run.out, [0, 1], hosts)
    lanes = run.lanes()
    assert lanes["rank 0 (near)", "compute"] == lanes["rank 1 (far)", "compute"] == [("aten::mm", 1, 2)]
    assert lanes["rank 1 (far)", "waiting"] == [("waiting", 3, 4)]


def test_a_gpus_kernels_are_its_compute_and_nccls_are_exchanges(run: Run) -> None:
    def kernel(begin: float, end: float, name: str, **arguments: Any) -> Any:
        return operation(begin, end, name, thread=7, cat="kernel", args=arguments)

    told = {"Collective name": "allreduce", "Process Group Name": "0", "In msg nelems": 6, "dtype": "Float"}
    run.rank(0, [
        operation(0, 1, "aten::mm"),
        kernel(1, 3, "gemm"),
        kernel(2, 4, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", **told),
        kernel(5, 6, "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        exchange(0, 1, "nccl:all_reduce", MAIN),
        operation(6, 7, "Memcpy DtoH", thread=7, cat="gpu_memcpy"),
    ], [STEP])  # fmt: skip
    all_ranks.write(run.out, [0], [])
    lanes = {lane: times for (_, lane), times in run.lanes().items()}
    assert lanes["compute"] == [("gemm", 1, 3), ("Memcpy DtoH", 6, 7)]
    assert lanes["all_reduce, all ranks"] == [("all_reduce", 2, 4)]
    assert lanes["reduce_scatter"] == [("reduce_scatter", 5, 6)]
    rows = {row["kind"]: row for row in read_table(run.out / "profile/exchange.csv")}
    assert (rows["all_reduce"]["bytes"], rows["all_reduce"]["hidden_fraction"]) == (24, 0.5)


@pytest.mark.parametrize(
    "damage", ["cut", "no trace", "other text", "no activities", "other rows", "missing"]
)
def test_a_damaged_rank_is_left_out_in_a_line_and_the_others_are_there(
    damage: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.rank(0, [operation(1, 2)], [STEP])
    run.rank(1, [operation(1, 2)], [STEP])
    trace, activities = run.out / "profile/rank-1.json.gz", run.out / "ranks/1/activities.json"
    whole = trace.read_bytes()
    {
        "cut": lambda: trace.write_bytes(whole[: len(whole) // 2]),
        "no trace": lambda: trace.write_bytes(gzip.compress(b"{}")),
        "other text": lambda: trace.write_bytes(b"nothing"),
        "no activities": activities.unlink,
        "other rows": lambda: activities.write_text("[[1]]"),
        "missing": trace.unlink,
    }[damage]()
    all_ranks.write(run.out, [0, 1], [])
    assert {process for process, _ in run.lanes()} == {"rank 0 (here)"}
    said = capsys.readouterr().err
    assert said.startswith("  profile: rank 1 is left out: ")
    assert said.count("\n") == 1


def test_without_any_trace_there_is_no_file(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    all_ranks.write(run.out, [0, 1], [])
    assert list((run.out / "profile").iterdir()) == []
    assert "rank 1 is left out" in capsys.readouterr().err


def test_lanes_are_no_more_than_needed() -> None:
    def span(begin: int, end: int) -> Span:
        return Span(begin, end, "")

    first, second = all_ranks.side_by_side([span(4, 6), span(0, 3), span(2, 4), span(3, 5)])
    assert first == [span(0, 3), span(3, 5)]
    assert second == [span(2, 4), span(4, 6)]
