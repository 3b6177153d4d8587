"""Say what a study's runs mean: how to train each of its models, what that gives and costs, what isn't known.

    python -m src.recommend --measured                        # of the study in params.yaml
    python -m src.recommend --measured aim=memory limit.hours=2
    python -m src.recommend --measured aim=cost prices=prices.yaml --json

The stage `aggregate` says the same, for the study's own aim, and keeps it in tables/verdict.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from src.config import ConfigError
from src.report import study as studies
from src.report.console import print_verdicts
from src.report.verdict.objective import AIMS, KEYS, objective
from src.report.verdict.verdicts import as_json, verdicts
from src.run import exit_lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the verdicts; return the exit status: 0, 1 where no run was measured, or 2 for a mistake."""
    options = _parse(arguments)
    return exit_lines.run(lambda: _recommend(options))


def _recommend(options: argparse.Namespace) -> int:
    if not options.measured:
        raise ConfigError("say --measured: there is no recommendation but of what was measured")
    study = studies.read(options.params)
    wanted = objective(study, options.overrides)
    directory = options.study_dir or studies.directory(study)
    rows = studies.merged_rows(study, studies.load(study, directory))
    found = verdicts(rows, wanted, study)
    if options.json:
        print(json.dumps([as_json(verdict) for verdict in found], indent=2))
    elif not found:
        print(
            f"nothing that trains was measured in {directory}; make run, or make study NAME={study['name']}, "
            "does that"
        )
    else:
        print_verdicts(found)
    return 0 if found else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        "python -m src.recommend", description="How to train a study's models, by what was measured."
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help=f"of {', '.join(KEYS)}; aims are {', '.join(AIMS)}",
    )
    parser.add_argument("--measured", action="store_true", help="by the runs of a study")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument(
        "--params", type=Path, default=Path("params.yaml"), help="the file that holds the study"
    )
    parser.add_argument("--study-dir", type=Path, help="where its runs/ are (default: results/<study>)")
    return parser.parse_intermixed_args(arguments)


if __name__ == "__main__":
    exit_lines.leave(main)
