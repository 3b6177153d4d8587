"""Render a study as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from src.config.datasets import GENERATED
from src.report import activity, canvas, comparison, figures, findings, pictures, repeats
from src.report.runs import Row, StudyRun, retry_command
from src.report.verdict.verdicts import Verdict
from src.report.views import DISTURBED, KINDS, show, views
from src.run.status import Status

BEST = (
    ("most samples/s", "samples_per_second", max),
    ("most accurate", "accuracy", max),
    ("least memory", "memory_peak_bytes", min),
    ("least energy", "energy_joules", min),
)
FIGURES = (
    (
        "Throughput",
        "The bar is the median run, a dot one run, hollow where others disturbed it; "
        "w = workers. Frameworks stand in panels of their own.",
    ),
    ("Time of an epoch", "Training alone: start-up and evaluation are left out. Bars and dots as above."),
    (
        "Speed-up",
        "Over the baseline that the table names, beside the ideal (theoretical) line; a dot is one run, a "
        "line their median, a broad bar the 95 % interval.",
    ),
    (
        "Accuracy and loss while training",
        "On the test set; dashed lines have several workers, dotted ones are weak-scaled.",
    ),
    (
        "Accuracy and loss over time",
        "The same curves against seconds of training: who is ahead at an equal time. Lines as above.",
    ),
    ("Final accuracy", "On the test set, when training ended."),
    (
        "Against the batch",
        "On a logarithmic axis; dashed lines have several workers, dotted ones are weak-scaled.",
    ),
    (
        "Staleness",
        "How many updates the parameters had between a step's fetch and the effect of its "
        "gradient. What each worker did is in its run's workers.csv.",
    ),
    ("Utilisation over time", "One line a device; the runs are taken evenly from all."),
    (
        "What stages and workers do",
        "The first recorded steps of runs whose model is cut, or whose workers are asynchronous, with "
        "a parameter server; blank or grey is idle. The whole record is each run's timeline.json, for "
        "Perfetto or chrome://tracing.",
    ),
)


def render(
    study: Mapping[str, Any],
    runs: Sequence[StudyRun],
    rows: Sequence[Row],
    verdict: Sequence[Verdict] = (),
) -> str:
    """Return the page: one HTML text that loads nothing from anywhere.

    Of `study`, from params.yaml, `name`, `published` and `findings` are read; `rows` are merged ones
    (`tables.merged`), one of each run.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True
    )
    claims = [(claim, findings.check(claim, rows)) for claim in study.get("findings") or []]
    summed = repeats.summarise(rows)
    seen, unseen = pictures.groups(rows)
    return environment.get_template("page.html.j2").render(
        name=study.get("name"),
        when=_when(runs),
        machines=_machines(runs),
        counts=_counts(runs),
        repetitions=max((row["repetitions"] for row in summed), default=0),
        best=best(summed),
        verdict=verdict,
        views=views(summed),
        drawn=_drawn(runs, rows),
        seen=seen,
        unseen=unseen,
        cuts=cuts(runs, rows),
        published=published(study.get("published") or [], summed),
        claims=claims,
        retry=retry_command,
        failed=[run for run in runs if run.status in (Status.FAILED, Status.MISSING)],
    )


def best(rows: Sequence[Row]) -> list[Row]:
    """Return the configurations that lead in each metric of `BEST`, among those that compare.

    A group is of one framework, model, dataset, source and precision, on the same software and hardware
    class; only groups of at least two have a leader. Where repetitions tell no two of them apart, all that
    are as fast as measured lead together.
    """
    groups: dict[str, list[list[Row]]] = {}
    for row in rows:
        if row["status"] == Status.OK and not row.get("shared_device"):
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
                known = [row for row in group if row.get(key) is not None]
                if len(known) > 1:
                    leaders = _leaders(known, key, choose)
                    value = show(leaders[0][key], KINDS[key])
                    run = " = ".join(_configuration(row) for row in leaders)
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


def _leaders(rows: Sequence[Row], key: str, choose: Callable[..., Row]) -> list[Row]:
    """Return the row that leads in `key`, and for a throughput those that repetitions don't tell from it."""
    first = choose(rows, key=lambda row: row[key])
    if key != "samples_per_second":
        return [first]
    return [first, *(row for row in rows if row is not first and repeats.as_fast(first, row, rows))]


def _configuration(row: Row) -> str:
    weak = ", weak" if row.get("scaling") == "weak" else ""
    mark = f" {DISTURBED}" if row.get("disturbed") else ""
    return f"{row['label']}, workers {row['workers']}, batch {row['batch']}{weak}{mark}"


def published(entries: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> list[Row]:
    """Return the papers' figures, each with ours of the matching runs (`here`), `-` where there are none.

    An entry matches by framework, strategy, model, dataset, workers, batch, scaling, and by options of the
    strategy and of our hardware (`strategy.loop`, `hardware.name`); each framework and strategy that it
    leaves open has its own figure, and so have generated data.
    """
    shown: list[Row] = []
    for entry in entries:
        options = [key for key in entry if key.startswith(("strategy.", "hardware."))]
        keys = ("framework", "strategy", *options, "model", "dataset", "workers", "batch", "scaling")
        wanted = {key: entry[key] for key in keys if entry.get(key) is not None}
        metric = str(entry.get("metric"))
        known: dict[tuple[str, ...], list[Row]] = {}
        for row in findings.select(rows, wanted):
            if row.get(metric) is not None:
                kinds = tuple(str(row.get(key)) for key in ("framework", "strategy", "data_source"))
                known.setdefault(kinds, []).append(row)
        kind = KINDS.get(metric, "number")
        figures_by_strategy = [
            (f"{strategy} " if len(known) > 1 else "")
            + _span(alike, metric, kind)
            + (" (generated data)" if source == GENERATED else "")
            for (_, strategy, source), alike in known.items()
        ]
        printed = entry.get("value")
        if isinstance(printed, int | float):
            printed = f"{printed} {entry.get('unit', '')}".strip()
        runs = ", ".join(_named(key, value) for key, value in wanted.items())
        here = "; ".join(figures_by_strategy) or "-"
        shown.append({**entry, "runs": runs, "said": printed, "here": here})
    return shown


def _span(rows: Sequence[Row], metric: str, kind: str) -> str:
    """Return the figure of one strategy's configurations, or the least and the largest of them."""
    low, high = (show(choose(row[metric] for row in rows), kind) for choose in (min, max))
    mark = f" {DISTURBED}" if any(row.get("disturbed") for row in rows) else ""
    return (low if low == high else f"{low} to {high} ({len(rows)} configurations)") + mark


def cuts(runs: Sequence[StudyRun], rows: Sequence[Row]) -> list[Row]:
    """Return a row for each stage of each run whose model was cut: its operations and expected costs."""
    shown: list[Row] = []
    for run, row in zip(runs, rows, strict=True):
        stages = run.cut.get("stages") or []
        for number, stage in enumerate(stages):
            shown.append(
                {
                    "label": f"{row['label']}, {row['model']}, batch {row['batch']}" if number == 0 else "",
                    "stage": f"{number} of {len(stages)}",
                    "operations": f"{stage['start']} to {stage['stop'] - 1}",
                    "first": stage["first"],
                    "parameters": f"{stage['parameters']:,}",
                    "seconds": show(stage["seconds"], "seconds"),
                    "transfer": show(stage["transfer_seconds"], "seconds"),
                    "memory": show(stage["memory_bytes"], "bytes"),
                    "sends": f"{len(stage['sends'])}: {show(stage['sent_bytes'], 'bytes')}"
                    if stage["sends"]
                    else "-",
                }
            )
    return shown


def _named(key: str, value: Any) -> str:
    text = " or ".join(map(str, value if isinstance(value, list) else [value]))
    named = key in ("workers", "batch") or "." in key
    return f"{key.rpartition('.')[2]} {text}" if named else text


def _drawn(runs: Sequence[StudyRun], rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Draw the figures that this study has runs for; return title, caption and `data:` address of each."""
    points, look = picture(runs, rows)
    learned, batches = figures.curves(points, look, "epoch"), figures.batches(points, look)
    drawn = (
        figures.bars(points, look, "samples_per_second", "training samples/s"),
        None if batches else figures.bars(points, look, "seconds_per_epoch", "seconds of training per epoch"),
        figures.speedups(points, look),
        learned,
        figures.curves(points, look, "train_seconds"),
        None if learned or batches else figures.bars(points, look, "accuracy", "test accuracy"),
        batches,
        activity.staleness(points, look),
        activity.traces(points, look),
        activity.timelines(points),
    )
    pairs = zip(FIGURES, drawn, strict=True)
    return [(title, caption, canvas.data_uri(figure)) for (title, caption), figure in pairs if figure]


def picture(
    runs: Sequence[StudyRun], rows: Sequence[Row]
) -> tuple[list[canvas.Point], dict[str, canvas.Look]]:
    """Return what figures are drawn from: the runs that compare, and the look of each label."""
    labels = {row["cell"]: row["label"] for row in rows}
    return canvas.points(runs, labels, {row["cell"]: row for row in rows}), canvas.looks(labels.values())


def _counts(runs: Sequence[StudyRun]) -> str:
    statuses = [run.status for run in runs]
    return ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))


def _when(runs: Sequence[StudyRun]) -> str:
    """Return when the last run ended, by its files: a page made again from the same runs is the same."""
    files = [run.directory / "metrics.json" for run in runs]
    times = [file.stat().st_mtime for file in files if file.exists()]
    return datetime.fromtimestamp(max(times), UTC).strftime("%Y-%m-%d %H:%M UTC") if times else "never"


def _machines(runs: Sequence[StudyRun]) -> list[str]:
    """Describe each machine and set of versions that runs were measured with, in a line."""
    lines: list[str] = []
    for run in runs:
        seen = run.environment
        processors = seen.get("processors") or {}
        gpus = [str(gpu.get("name") if isinstance(gpu, Mapping) else gpu) for gpu in seen.get("gpus") or []]
        versions = [f"{name} {version}" for name, version in (seen.get("versions") or {}).items()]
        parts = [
            seen.get("hostname"),
            f"{processors.get('count', '?')} x {processors.get('model', 'processor')}"
            if processors
            else None,
            ", ".join(gpus) if gpus else None,
            ", ".join(versions) if versions else None,
            f"commit {str(seen['git_commit'])[:10]}" if seen.get("git_commit") else None,
        ]
        line = "; ".join(str(part) for part in parts if part)
        if line and line not in lines:
            lines.append(line)
    return lines
