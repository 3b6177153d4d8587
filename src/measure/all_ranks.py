"""Put the traces of all ranks on one clock: one file for Perfetto or Chrome, and tables of it.

A process a rank, and in it a lane for each kind of activity:

rank 0 (host)   steps                       step 3          step 4
                input                       -               -
                compute                      ---- --- --     ---- -- --
                all_reduce, all ranks           ----   --       ---- ---
                waiting                                --            ---
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from src.measure import profile_tables, rank_profile
from src.measure.rank_profile import RankProfile, Span
from src.run import files
from src.run.tables import write_table

# What a damaged file may raise.
DAMAGE = (OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, zlib.error)


def write(out: Path, ranks: Iterable[int], hosts: Sequence[Mapping[str, Any]]) -> None:
    """Write the trace of all ranks of the run in the directory `out`, and its tables.

    A rank whose trace is missing or damaged is left out, with a line that says so; it fails no run.

    Args:
        out: the run's directory.
        ranks: those that have recorded steps.
        hosts: those of a cluster, as environment.json has them.
    """
    of_rank = {process: host for host in hosts for process in host["processes"]}
    profiles = []
    for rank in ranks:
        host = of_rank.get(f"rank-{rank}", {})
        try:
            profile = rank_profile.read(
                files.profile_of(out, rank).with_suffix(".json.gz"),
                files.rank_folder(out, rank) / files.ACTIVITIES,
                rank=rank,
                host=host.get("name"),
                ahead=host.get("clock_offset_seconds", 0.0),
            )
        except DAMAGE as error:
            print(f"  profile: rank {rank} is left out: {error or type(error).__name__}", file=sys.stderr)
            continue
        profiles.append(profile)
    if not profiles:
        return
    folder = out / files.PROFILE
    with gzip.open(folder / files.ALL_RANKS, "wt", encoding="utf-8", compresslevel=6) as file:
        # `json.dump` would write it piece by piece, in twice the time.
        file.write(json.dumps(chrome_trace(profiles), separators=(",", ":")))
    write_table(
        folder / files.PROFILED_EXCHANGES,
        profile_tables.EXCHANGE_FIELDS,
        [row for profile in profiles for row in profile_tables.exchange_rows(profile)],
    )
    write_table(folder / files.PROFILED_STEPS, profile_tables.STEP_FIELDS, profile_tables.step_rows(profiles))


def chrome_trace(profiles: Sequence[RankProfile]) -> dict[str, Any]:
    """Return the ranks' lanes as a Chrome trace: complete events in microseconds, a process a rank."""
    lanes = {profile.rank: list(_lanes(profile)) for profile in profiles}
    begins = (span.begin for own in lanes.values() for _, spans in own for span in spans)
    zero = min(begins, default=0)
    events: list[dict[str, Any]] = []
    for profile in profiles:
        name = f"rank {profile.rank}" + (f" ({profile.host})" if profile.host else "")
        events += _titles("process", profile.rank, 0, name, profile.rank)
        for lane, (title, spans) in enumerate(lanes[profile.rank]):
            events += _titles("thread", profile.rank, lane, title, lane)
            for span in spans:
                event = {
                    **{"ph": "X", "pid": profile.rank, "tid": lane, "name": span.name},
                    **{"ts": (span.begin - zero) / 1000, "dur": (span.end - span.begin) / 1000},
                }
                events.append(event if span.size is None else event | {"args": {"bytes": span.size}})
    return {"displayTimeUnit": "ms", "baseTimeNanoseconds": zero, "traceEvents": events}


def _titles(kind: str, process: int, lane: int, name: str, place: int) -> Iterator[dict[str, Any]]:
    """Yield the events that name a process or a lane, and say where it stands."""
    common = {"ph": "M", "pid": process, "tid": lane}
    yield {**common, "name": f"{kind}_name", "args": {"name": name}}
    yield {**common, "name": f"{kind}_sort_index", "args": {"sort_index": place}}


def _lanes(profile: RankProfile) -> Iterator[tuple[str, list[Span]]]:
    """Yield the title of each lane and its spans, which don't overlap."""
    steps = [Span(begin, end, f"step {step}") for step, (begin, end) in sorted(profile.steps.items())]
    groups = [("steps", steps), ("input", profile.input), ("compute", profile.compute)]
    groups += [
        (", ".join(part for part in key if part), spans) for key, spans in sorted(profile.exchanges.items())
    ]
    for title, spans in [*groups, ("waiting", profile.waiting)]:
        for number, lane in enumerate(side_by_side(spans), 1):
            yield title if number == 1 else f"{title} ({number})", lane


def side_by_side(spans: Sequence[Span]) -> list[list[Span]]:
    """Return the spans in as few lanes as needed for none of a lane to overlap; one lane at least."""
    lanes: list[list[Span]] = [[]]
    for span in sorted(spans):
        free = next((lane for lane in lanes if not lane or lane[-1].end <= span.begin), None)
        if free is None:
            lanes.append(free := [])
        free.append(span)
    return lanes
