"""Say which configurations lead, and name all of them where nothing tells them apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from src.report import comparison, repeats
from src.report.runs import Row
from src.report.views import DISTURBED, KINDS, listed, show
from src.run.status import Status

SPEED = "samples_per_second"
BEST: tuple[tuple[str, str, Callable[..., Row]], ...] = (
    ("most samples/s", SPEED, max),
    ("most accurate", "accuracy", max),
    ("least memory", "memory_peak_bytes", min),
    ("least energy", "energy_joules", min),
)


def best(rows: Sequence[Row]) -> list[Row]:
    """Return the configurations that lead in each metric of `BEST`, among those that compare.

    A group is of one framework, model, dataset, source and precision, on the same software and hardware
    class; only groups of at least two have a leader. Configurations whose figure reads the same lead
    together, as do those whose repetitions tell no difference of speed. Where each ran once, none leads in
    speed.
    """
    groups: dict[str, list[list[Row]]] = {}
    for row in rows:
        trains = not row["run"].get("strategy.capacity")
        if trains and row["status"] == Status.OK and not row.get("shared_device"):
            name = "{framework}: {model} on {dataset}".format_map(row)
            name += "".join(f", {row[key]}" for key in ("data_source", "precision") if key in row)
            _add_to_ground(groups.setdefault(name, []), row)
    leads: list[Row] = []
    for name, grounds in groups.items():
        places = [group[0]["run"].get("hardware") for group in grounds]
        for place, group in enumerate(grounds):
            title = name
            if len(set(places)) == len(grounds) > 1:
                title = f"{name}, {places[place]}"
            elif len(grounds) > 1:
                title = f"{name} ({place + 1} of {len(grounds)} machines or versions)"
            for what, key, choose in BEST:
                if leaders := _leaders(group, key, choose):
                    run = listed([_configuration(row) for row in leaders], " = ")
                    value = show(leaders[0][key], KINDS[key])
                    leads.append({"group": title, "what": what, "run": run, "value": value})
    return leads


def _add_to_ground(grounds: list[list[Row]], row: Row) -> None:
    """Add a row to the first group whose runs had its software and hardware class, or to a new one."""
    for group in grounds:
        one, other = group[0]["run"], row["run"]
        if comparison.same_software(one, other) and comparison.same_hardware(one, other):
            group.append(row)
            return
    grounds.append([row])


def _leaders(group: Sequence[Row], key: str, choose: Callable[..., Row]) -> list[Row]:
    """Return the row that leads in `key` with all that aren't told from it; nothing if no leader is known."""
    known = [row for row in group if row.get(key) is not None]
    if len(known) < 2:
        return []
    first = choose(known, key=lambda row: row[key])
    if key == SPEED and not any(_repeated_together(first, row) for row in known):
        return []
    return [first, *(row for row in known if row is not first and _ties(first, row, known, key))]


def _ties(first: Row, row: Row, known: Sequence[Row], key: str) -> bool:
    same = show(row[key], KINDS[key]) == show(first[key], KINDS[key])
    return same or (key == SPEED and repeats.as_fast(first, row, known))


def _repeated_together(one: Row, other: Row) -> bool:
    """Return whether two configurations were measured together at least twice, so that noise is known."""
    mine, theirs = (
        {comparison.block(each["run"]) for each in row["repeated"] if each.get(SPEED)} for row in (one, other)
    )
    return one is not other and len(mine & theirs) > 1


def _configuration(row: Row) -> str:
    weak = ", weak" if row.get("scaling") == "weak" else ""
    mark = f" {DISTURBED}" if row.get("disturbed") else ""
    return f"{row['label']}, workers {row['workers']}, batch {row['batch']}{weak}{mark}"
