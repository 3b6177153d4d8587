"""Render a study as one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from src.config.datasets import GENERATED
from src.report import (
    canvas,
    charts,
    commands,
    exchange,
    findings,
    left_out,
    memory,
    palette,
    pictures,
    repeats,
    seeds,
    steps_to_target,
    svg,
)
from src.report.runs import Row, StudyRun, retry_command
from src.report.verdict.verdicts import Verdict
from src.report.views import DISTURBED, KINDS, View, show, views
from src.run.status import Status

# A page is sent by mail and opened on phones.
PAGE_BYTES = 3_000_000


def render(
    study: Mapping[str, Any],
    runs: Sequence[StudyRun],
    rows: Sequence[Row],
    verdict: Sequence[Verdict] = (),
    others: Sequence[Verdict] = (),
    first: Sequence[View] = (),
) -> str:
    """Return the page: one HTML text that loads nothing from anywhere, and reads without JavaScript.

    Of `study`, from params.yaml, `name`, `repeat`, `published` and `findings` are read; `rows` are merged
    ones (`tables.merged`), one of each run. The study's verdicts stand on top, then
    those by `others` than its own aim; the tables `first` come before its own.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["sortable"] = _sortable
    environment.filters["code"] = code
    claims = [(claim, findings.check(claim, rows)) for claim in study.get("findings") or []]
    summed = repeats.summarise(rows)
    inliner = svg.Inliner()
    script = (Path(__file__).parent / "page.js").read_text()
    template = environment.get_template("page.html.j2")
    parts: dict[str, Any] = dict(
        name=study.get("name"),
        when=_when(runs),
        machines=_machines(runs),
        counts=_counts(runs),
        repetitions=max((row["repetitions"] for row in summed), default=0),
        others=others,
        verdict=verdict,
        views=[
            *first,
            *views(summed),
            *exchange.views(summed),
            *memory.views(summed),
            *steps_to_target.view(runs),
            *seeds.view(rows),
        ],
        charts=charts.charts(*picture(runs, rows), inliner),
        figure_styles=inliner.css(),
        colours={theme: palette.css(theme) for theme in ("light", "dark")},
        script=script,
        script_hash=_hash(script),
        cuts=cuts(runs, rows),
        published=published(study.get("published") or [], summed),
        claims=claims,
        left_out=left_out.left_out(summed),
        commands=commands.commands(study, runs),
        retry=retry_command,
        failed=[run for run in runs if run.status in (Status.FAILED, Status.MISSING)],
    )
    # Pictures have what the rest leaves of a page; encoded they are a third larger.
    rest = len(template.render(**parts).encode())
    seen, unseen = pictures.groups(rows, (PAGE_BYTES - rest) * 3 / 4)
    return template.render(**parts, seen=seen, unseen=unseen)


def picture(
    runs: Sequence[StudyRun], rows: Sequence[Row]
) -> tuple[list[canvas.Point], dict[str, canvas.Look]]:
    """Return what figures are drawn from: the runs that compare, and the look of each label."""
    labels = {row["cell"]: row["label"] for row in rows}
    return canvas.points(runs, labels, {row["cell"]: row for row in rows}), canvas.looks(labels.values())


def code(text: str) -> Markup:
    """Return a text in which what stands between backticks is code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _sortable(value: Any, cell: str) -> str:
    """Return a cell's number, to five digits, by which a script sorts; nothing if its text says as much."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return ""
    text = f"{value:.5g}"
    return "" if text == cell else text


def _hash(script: str) -> str:
    """Return the name of a script in a page's content security policy: nothing else may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


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
                    "label": f"{row['label']}, {row['model']}, batch {row['batch']}",
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
