"""Predict steps: of runs of one's own, from a profile of their machine, or of a table's configurations.

    python -m src.predict --profile profile [--runs results/quick ...] strategy=ddp,fsdp model=resnet18
    python -m src.predict --ledger
    python -m src.predict hardware=a100_80gb devices=1..64 network=infiniband_hdr model=gpt2_124m
    python -m src.predict --rows in.csv --out out.csv

Words are those of a sweep of `src.train`. A profile is made by `python -m src.profile`; finished runs in
the folders of `--runs` calibrate. Words with the name of a data sheet ask of devices that it describes. In a
table rows that have `seconds` calibrate, and the others are predicted. `--what-if network=2x compute=1.3x`
predicts a machine that is so many times as fast (docs/predict.md).
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path

from src.config.mistakes import ConfigError
from src.predict import table, what_if
from src.predict.own import command
from src.predict.predictions import Prediction, predict
from src.run import exit_lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Predict; return the exit status: 0, 1 where no row was predicted, or 2 for a mistake."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _parse(arguments)
    return exit_lines.run(lambda: _answer(options))


def _answer(options: argparse.Namespace) -> int:
    """Do what is asked; return the exit status."""
    asked = [name for name in ("rows", "profile", "ledger") if getattr(options, name)]
    if not asked and options.words:
        return _predict_described(options)
    if len(asked) != 1:
        raise ConfigError(
            "say one of --profile PROFILE with words, --rows IN --out OUT, --ledger, and words with "
            "hardware=a100_80gb"
        )
    if options.json:
        raise ConfigError("--json: is of words with hardware=a100_80gb")
    if options.ledger:
        return command.show_ledger()
    if options.profile:
        if options.out is not None:
            raise ConfigError("--out: is of --rows")
        changes = what_if.parse(options.what_if)
        return command.predict(
            options.words, options.profile, options.runs, options.seed, changes, options.timelines
        )
    if options.out is None:
        raise ConfigError("--rows: needs --out, a file for the table with predictions")
    given = [*options.words, *map(str, options.runs), *(["--timelines"] if options.timelines else [])]
    if given:
        raise ConfigError(f"{given[0]}: is of --profile, not of --rows")
    return _predict(options)


def _predict_described(options: argparse.Namespace) -> int:
    """Predict on devices that are described; return the exit status."""
    for name in ("out", "runs", "timelines"):
        if getattr(options, name):
            raise ConfigError(f"--{name}: is of --{'rows' if name == 'out' else 'profile'}")
    if not any(word.startswith("hardware=") for word in options.words):
        raise ConfigError(
            "hardware=: name a data sheet of conf/hardware/, as hardware=a100_80gb, or say --profile PROFILE"
        )
    # It is of no use to whoever predicts from a profile.
    from src.predict import described

    return described.predict(options.words, what_if.parse(options.what_if), as_json=options.json)


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
    parser.add_argument("words", nargs="*", help="of runs that are predicted, as those of src.train")
    parser.add_argument("--profile", type=Path, help="a profile of their machine, or its folder")
    parser.add_argument("--runs", nargs="+", default=[], help="folders of runs that calibrate")
    parser.add_argument("--timelines", type=Path, help="a folder for simulated steps, as Chrome traces")
    parser.add_argument("--config-dir", help="a folder with further choices, as of src.train")
    parser.add_argument("--json", action="store_true", help="print what words ask of described devices so")
    parser.add_argument("--ledger", action="store_true", help="show all predictions and what came of them")
    parser.add_argument("--rows", type=Path, help="a table, a configuration a row")
    parser.add_argument("--out", type=Path, help="the same table, with predictions")
    parser.add_argument("--seed", type=_seed, default=0, help="of the folds from which intervals are had")
    parser.add_argument(
        "--what-if",
        nargs="+",
        default=[],
        metavar="key=TIMESx",
        help=f"predict a machine that is so many times as fast: {', '.join(what_if.CONSTANTS)}",
    )
    options = parser.parse_intermixed_args(arguments)
    # Words that follow the folders of `--runs`, or changes, are words all the same.
    for name in ("runs", "what_if") if options.rows is None else ():
        given = getattr(options, name)
        taken = [each for each in given if _is_word(each, name)]
        setattr(options, name, [each for each in given if each not in taken])
        options.words += taken
    if options.config_dir is not None:
        options.words.append(f"--config-dir={options.config_dir}")
    options.runs = [Path(each) for each in options.runs]
    return options


def _is_word(text: str, option: str) -> bool:
    """Return whether what follows an option sets a key, as `batch=64`."""
    own = what_if.is_change(text) if option == "what_if" else Path(text).is_dir()
    return "=" in text and not own


if __name__ == "__main__":
    exit_lines.leave(main)
