"""A profile of TensorFlow's becomes a Chrome trace: operations, collectives and kernels, at their times."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

BEGAN = 1_795_723_172_161_233_136


def add_line(plane: Any, name: str, *events: tuple[str, float, float]) -> None:
    """Add a line with events between two times in microseconds, of which the line's own begin is 100."""
    line = plane.lines.add(name=name, timestamp_ns=100_000)
    for event, begin, end in events:
        number = len(plane.event_metadata) + 1
        plane.event_metadata[number].name = event
        line.events.add(
            metadata_id=number,
            offset_ps=round((begin - 100) * 1e6),
            duration_ps=round((end - begin) * 1e6),
        )


def test_operations_collectives_and_kernels_are_told_apart(tmp_path: Path) -> None:
    # TensorFlow isn't imported where tests are but collected.
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    from src.runtime.tensorflow import chrome_trace

    space = xplane_pb2.XSpace(hostnames=["here"])
    host = space.planes.add(name="/host:CPU")
    add_line(
        host,
        "tf_Compute/1",
        ("ExecutorState::Process", 100, 900),
        ("CollectiveOpV2Kernel::Run", 100, 110),
        ("StatefulPartitionedCall:StatefulPartitionedCall", 120, 800),
        ("while/body/model/conv2d/Relu:_MklNativeFusedConv2D", 150, 250.5),
        ("IteratorGetNext:IteratorGetNext", 300, 400),
    )
    add_line(host, "collective_ops/2", ("sgd/CollectiveReduceV2:CollectiveReduceV2", 260, 290))
    add_line(host, "tf_data_private_threadpool/3", ("Cast:Cast", 100, 110))
    gpu = space.planes.add(name="/device:GPU:0")
    add_line(gpu, "Stream #14", ("gemm", 500, 600))
    add_line(gpu, "Steps", ("3", 100, 600))
    task = space.planes.add(name="Task Environment")
    task.stat_metadata[7].name = "profile_start_time"
    task.stats.add(metadata_id=7, uint64_value=BEGAN)
    folder = tmp_path / "rank-0/plugins/profile/now"
    folder.mkdir(parents=True)
    (folder / "here.xplane.pb").write_bytes(space.SerializeToString())
    chrome_trace.write(tmp_path / "rank-0")
    with gzip.open(tmp_path / "rank-0.json.gz", "rt") as file:
        trace = json.load(file)
    assert (trace["baseTimeNanoseconds"], trace["host_name"]) == (BEGAN, "here")
    found = [
        (event["cat"], event["name"], event["ts"], event["dur"])
        for event in trace["traceEvents"]
        if event["ph"] == "X"
    ]
    assert found == [
        ("cpu_op", "MklNativeFusedConv2D", 150, 100.5),
        ("user_annotation", "tensorflow:all_reduce", 260, 30),
        ("kernel", "gemm", 500, 100),
    ]
