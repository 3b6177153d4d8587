"""Train a folder of models under every torch strategy, and print a table of what came of it.

python -m bench.own_models [--folder FOLDER] [--jobs N] [--device gpu]

A model is a file with `build(classes, shape)`; the first sentence of its docstring says of which kind it is.
Each trains ten steps of MNIST under `single` and under every other strategy, and the table says of each run
what a study's column `parity` says, with the largest gap of the first losses to those of `single`, or with
which line it was refused. The table is written to bench/out/ too. Several runs share the cores: these figures
are of correctness, not of speed.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.runs import OUT
from src.report.runs import StudyRun, load_run
from src.report.tables import parity
from src.run.status import Status

MODELS = Path(__file__).parent / "models"
WORDS = (
    "model=custom", "tracking.backend=none", "hardware.share_devices=true",
    "hardware.wait_minutes=5", "hardware.grace_minutes=1", "max_minutes=0.5", "epochs=1", "batch=64",
    "dataset.limit=640", "dataset.test_limit=100",
)  # fmt: skip
MICROBATCHES, WORKERS = 4, 2
# The name of each column, and what is typed for it. Those that stages are held against come first.
STRATEGIES = {
    "single": ("strategy=single",),
    f"single, {MICROBATCHES} micro-batches": ("strategy=single", f"microbatches={MICROBATCHES}"),
    f"single, {WORKERS} micro-batches": ("strategy=single", f"microbatches={WORKERS}"),
    "ddp": ("strategy=ddp",),
    "mpi": ("strategy=mpi",),
    "pipeline": ("strategy=pipeline", f"microbatches={MICROBATCHES}"),
    "model_split": ("strategy=model_split",),
    "parameter_server, sync": ("strategy=parameter_server", "strategy.mode=sync"),
    "parameter_server, async": ("strategy=parameter_server", "strategy.mode=async"),
    "hogwild": ("strategy=hogwild",),
    "local_sgd": ("strategy=local_sgd",),
}
REFERENCES = 3
# A command that ends neither by itself nor by its caps hangs.
HANGS_SECONDS = 300.0


@dataclass(frozen=True)
class Trained:
    """A run of a model.

    Attributes:
        run: what its directory tells.
        refusal: the line by which it was refused before it started, if it was.
        hangs: whether the command had to be killed.
    """

    run: StudyRun
    refusal: str | None
    hangs: bool = False


def kinds(folder: Path) -> dict[str, str]:
    """Return the models of a folder: the names of their files, and the sentences that say of which kind."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == "build" for node in tree.body):
            text = next(
                (text for node in (tree, *tree.body) if (text := _docstring(node)) is not None), path.stem
            )
            found[path.stem] = text.strip().splitlines()[0].rstrip(".")
    return found


def _docstring(node: ast.AST) -> str | None:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        return ast.get_docstring(node)
    return None


def train(folder: Path, model: str, column: str, out: Path, device: str) -> Trained:
    """Train a model under a column's strategy, in fresh processes."""
    command = [sys.executable, "-m", "src.train", f"model.path={model}.build", f"out={out}"]
    command.append(f"hardware.device={device}")
    environment = {**os.environ, "PYTHONPATH": f"{folder.absolute()}:{os.environ.get('PYTHONPATH', '')}"}
    try:
        ended = subprocess.run(
            [*command, *WORDS, *STRATEGIES[column]],
            env=environment,
            capture_output=True,
            text=True,
            timeout=HANGS_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Trained(load_run(f"{model} {column}", {}, out), refusal=None, hangs=True)
    lines = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    refused = lines[-1].removeprefix("error: ") if ended.returncode and not out.exists() and lines else None
    return Trained(load_run(f"{model} {column}", {}, out), refused)


def verdict(trained: Trained, runs: Sequence[StudyRun], notes: list[str]) -> str:
    """Return the words of a run's field; a refusal is numbered among `notes`, where it is added."""
    if trained.hangs:
        return "**hangs**"
    if trained.refusal is not None:
        # The column says under which strategy.
        refusal = re.sub(r"^strategy=\w+: ", "", trained.refusal)
        if refusal not in notes:
            notes.append(refusal)
        return f"refused [{notes.index(refusal) + 1}]"
    if trained.run.status is not Status.OK:
        return f"**{trained.run.status}**: {trained.run.error or 'no reason is known'}"
    row = parity(trained.run, runs)
    gap = row.get("parity_gap")
    word = "trained" if row["parity"] == "reference" else row["parity"]
    return word if gap is None else f"{word}, {gap:.0e}"


def train_all(folder: Path, model: str, device: str) -> dict[str, Trained]:
    """Train a model under all strategies on a `device`, `cpu` or `gpu`; return the runs by column."""
    place = OUT / "own_models" / model
    shutil.rmtree(place, ignore_errors=True)
    return {
        column: train(folder, model, column, place / str(number), device)
        for number, column in enumerate(STRATEGIES)
    }


def main() -> int:
    """Train every model of the folder, and print the table; return 1 if a run failed or broke parity."""
    parser = argparse.ArgumentParser(prog="python -m bench.own_models", description=__doc__)
    parser.add_argument("--folder", type=Path, default=MODELS)
    parser.add_argument("--jobs", type=int, default=1, help="models that train at once")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--models", help="names of some of them, as tied,sparse")
    arguments = parser.parse_args()
    found = kinds(arguments.folder)
    chosen = arguments.models.split(",") if arguments.models else list(found)
    if unknown := [name for name in chosen if name not in found]:
        parser.error(f"--models={unknown[0]}: there are {', '.join(found)}")
    columns = [column for column in STRATEGIES if column not in list(STRATEGIES)[1:REFERENCES]]
    notes: list[str] = []
    lines = [f"| model | {' | '.join(columns)} |", "| --- |" + " --- |" * len(columns)]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for model, trained in zip(
            chosen,
            pool.map(lambda name: train_all(arguments.folder, name, arguments.device), chosen),
            strict=True,
        ):
            runs = [each.run for each in trained.values() if each.refusal is None]
            words = [verdict(trained[column], runs, notes) for column in columns]
            lines.append(f"| {found[model]} (`{model}`) | {' | '.join(words)} |")
            print(lines[-1], file=sys.stderr, flush=True)
    numbered = [f"{number}. {' '.join(note.split())}" for number, note in enumerate(notes, start=1)]
    text = "\n".join([*lines, "", *numbered]) + "\n"
    (OUT / "own_models.md").write_text(text)
    print(text, end="")
    return 1 if "**" in text or "BROKEN" in text else 0


if __name__ == "__main__":
    sys.exit(main())
