"""Write what TensorFlow's profiler has found as a Chrome trace, as torch's profiler does.

Operations have the category `cpu_op`, collectives `user_annotation` and a name as `tensorflow:all_reduce`, a
GPU's kernels `kernel`. Control flow, whose event contains others or nothing, and what `tf.data` reads ahead
are left out: TensorBoard has them.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from src.compat.tensorflow import read_profile

# An operation's event is called `name:Type`; the executor's own have colons in pairs.
OPERATION = re.compile(r"(?:[^\s:]+):(_?[A-Z]\w*)")
COLLECTIVES = {
    "CollectiveReduceV2": "all_reduce",
    "CollectiveReduceScatterV2": "reduce_scatter",
    "CollectiveGatherV2": "all_gather",
    "CollectiveAllToAllV2": "all_to_all",
    "CollectiveBcastSendV2": "broadcast",
    "CollectiveBcastRecvV2": "broadcast",
}
CONTROL = re.compile(
    r"(Stateful)?PartitionedCall|(Stateless)?(While|If|Case)|(MultiDevice)?Iterator\w*|Optional\w*"
)
READING_AHEAD = "tf_data"


def write(target: Path) -> None:
    """Write the newest profile below the folder `target` to `<target>.json.gz`."""
    newest = max(target.glob("plugins/profile/*/*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    space = read_profile(newest)
    trace = {
        "baseTimeNanoseconds": _begin(space),
        "host_name": "".join(space.hostnames[:1]),
        "displayTimeUnit": "ms",
        "traceEvents": [event for plane in space.planes for event in _events(plane)],
    }
    with gzip.open(f"{target}.json.gz", "wt", encoding="utf-8") as file:
        json.dump(trace, file)


def _begin(space: Any) -> int:
    """Return when the profile began, in nanoseconds since 1970; all its times are since then."""
    for plane in space.planes:
        for stat in plane.stats:
            if plane.stat_metadata[stat.metadata_id].name == "profile_start_time":
                return int(stat.uint64_value or stat.int64_value)
    raise LookupError("the profile doesn't say when it began")


def _events(plane: Any) -> Iterator[dict[str, Any]]:
    """Yield the events of a host's or a GPU's plane."""
    gpu = plane.name.startswith("/device:GPU")
    if not gpu and not plane.name.startswith("/host:CPU"):
        return
    for thread, line in enumerate(plane.lines):
        if line.name.startswith(READING_AHEAD) or (gpu and not line.name.startswith("Stream")):
            continue
        place = {"pid": plane.name, "tid": thread}
        yield {"ph": "M", **place, "name": "thread_name", "args": {"name": line.name}}
        for event in line.events:
            name = plane.event_metadata[event.metadata_id].name
            category = "kernel"
            if not gpu:
                kind = _kind(name)
                if kind is None:
                    continue
                category, name = kind
            times = {
                "ts": (line.timestamp_ns + event.offset_ps / 1000) / 1000,
                "dur": event.duration_ps / 1e6,
            }
            yield {"ph": "X", "cat": category, **place, "name": name, **times}


def _kind(name: str) -> tuple[str, str] | None:
    """Return the category and name of an operation by its event's name; `None` where it is none."""
    found = OPERATION.fullmatch(name)
    if found is None or CONTROL.fullmatch(found[1]):
        return None
    if found[1] in COLLECTIVES:
        return "user_annotation", f"tensorflow:{COLLECTIVES[found[1]]}"
    return "cpu_op", found[1].lstrip("_")
