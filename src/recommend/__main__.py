"""Say how to train: by what was measured, or by what is predicted for this machine or others.

    python -m src.recommend --measured                        # of the study in params.yaml
    python -m src.recommend --measured aim=memory limit.hours=2
    python -m src.recommend --measured aim=cost prices=prices.yaml --json
    python -m src.recommend --profile profile --runs results/quick model=cnn dataset=mnist batch=128
    python -m src.recommend hardware=a100_80gb devices=2..64 network=infiniband_hdr model=gpt2_124m batch=512

With a profile of one's own machine (`python -m src.profile`) each way that it predicts is weighed, or was
measured by the runs that are named.
With the name of a data sheet each way of dividing the work over so many devices is predicted, and the best
one named, with what is as good as far as known, why, on what that rests, and what to type
(docs/recommend.md).
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path

from src.config.mistakes import ConfigError
from src.report.verdict.objective import AIMS, KEYS
from src.run import exit_lines

PARAMS = Path("params.yaml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what to choose; return the exit status: 0, 1 where nothing can be chosen, or 2 for a mistake."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _parse(arguments)
    return exit_lines.run(lambda: _recommend(options))


def _recommend(options: argparse.Namespace) -> int:
    if options.measured:
        if options.profile is not None:
            raise ConfigError("--measured and --profile: say one of them; --runs names runs beside a profile")
        if options.runs:
            raise ConfigError(f"--runs {options.runs[0]}: is of --profile")
        if options.page is not None:
            raise ConfigError(f"--page {options.page}: a study has its own, results/<study>/report.html")
        if options.config_dir is not None:
            raise ConfigError(
                f"--config-dir={options.config_dir}: is of words of src.train, not of --measured"
            )
        from src.recommend import measured

        return measured.recommend(options.words, options.params, options.study_dir, as_json=options.json)
    if options.study_dir is not None or options.params != PARAMS:
        raise ConfigError("--params and --study-dir: are of --measured")
    options.config_words = [] if options.config_dir is None else [f"--config-dir={options.config_dir}"]
    if options.profile is not None:
        return _by_profile(options)
    if options.runs:
        raise ConfigError(f"--runs {options.runs[0]}: is of --profile")
    if not any(word.startswith("hardware=") for word in options.words):
        raise ConfigError(
            "say --measured, for a study's runs, --profile PROFILE model=..., for this machine, or "
            "hardware=a100_80gb devices=2..64 model=..., for devices that a data sheet describes"
        )
    from src.recommend import described

    words = [*options.words, *options.config_words]
    return described.recommend(words, as_json=options.json, to=options.page)


def _by_profile(options: argparse.Namespace) -> int:
    # Words may follow the folders.
    taken = [each for each in options.runs if "=" in each and not Path(each).is_dir()]
    folders = [Path(each) for each in options.runs if each not in taken]
    from src.recommend import own

    words = [*options.words, *taken, *options.config_words]
    return own.recommend(words, options.profile, folders, as_json=options.json, to=options.page)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        "python -m src.recommend", description="How to train: by what was measured, or predicted."
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="key=value",
        help=f"of {', '.join(KEYS)}, limit.cost; aims are {', '.join(AIMS)}; with hardware= also src.train's",
    )
    parser.add_argument("--measured", action="store_true", help="by the runs of a study")
    parser.add_argument("--profile", type=Path, help="by a profile of this machine, or its folder")
    parser.add_argument("--runs", nargs="+", default=[], help="with it: folders of runs that calibrate")
    parser.add_argument("--page", type=Path, help="write a page with curves over devices; not of --measured")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--params", type=Path, default=PARAMS, help="the file that holds the study")
    parser.add_argument("--study-dir", type=Path, help="where its runs/ are (default: results/<study>)")
    parser.add_argument("--config-dir", help="a folder with further choices, as of src.train")
    return parser.parse_intermixed_args(arguments)


if __name__ == "__main__":
    exit_lines.leave(main)
