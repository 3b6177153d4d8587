"""Predict steps of configurations from a table, and write it with predictions beside them.

    python -m src.predict --rows in.csv --out out.csv [--seed 0] [--what-if network=2x compute=1.3x]

Rows that have `seconds` calibrate, the others are predicted (docs/predict.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from src.predict import table, what_if
from src.predict.predictions import Prediction, predict
from src.run import exit_lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Predict; return the exit status: 0, 1 where no row was predicted, or 2 for a mistake."""
    options = _parse(arguments)
    return exit_lines.run(lambda: _predict(options))


def _predict(options: argparse.Namespace) -> int:
    changes = what_if.parse(options.what_if)
    columns, rows = table.read(options.rows)
    for line in table.misspelt(columns):
        print(f"{options.rows}: {line}")
    found = predict(rows, options.seed, changes)
    table.write(options.out, columns, rows, found)
    done = sum(isinstance(each, Prediction) for each in found)
    calibrate = sum(isinstance(each, str) and each.startswith("calibrates") for each in found)
    print(f"{options.out}: {done} predicted, {calibrate} calibrate, {len(found) - done - calibrate} neither")
    if done:
        return 0
    reasons = [each for each in found if isinstance(each, str) and not each.startswith("calibrates")]
    why = next(iter(reasons), "all rows have seconds" if found else "there are no rows")
    return exit_lines.complain(f"error: no row was predicted: {why}", 1)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError("must be a whole number from 0 on")
    return int(text)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        "python -m src.predict", description="Predict steps of configurations, calibrated by measured ones."
    )
    parser.add_argument("--rows", type=Path, required=True, help="a table, a configuration a row")
    parser.add_argument("--out", type=Path, required=True, help="the same table, with predictions")
    parser.add_argument("--seed", type=_seed, default=0, help="of the folds from which intervals are had")
    parser.add_argument(
        "--what-if",
        nargs="+",
        default=[],
        metavar="key=TIMESx",
        help=f"predict a machine that is so many times as fast: {', '.join(what_if.CONSTANTS)}",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_lines.leave(main)
