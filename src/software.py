"""Write by which software each cell of a study is computed, and from which of the user's own files.

This is the stage `software` of dvc.yaml:

    python -m src.software      # writes software/<configuration>.txt, where anything has changed

The stage train depends on these files in the place of code: what can touch a cell's figures, and no more. The
stage fetch depends on datasets.txt, which says what datasets there are and what folders of the user's own
hold, preprocess on dataset-<folder>.txt, by which code a dataset is read, and aggregate on study.yaml, the
study as it stands in params.yaml: no stage has cells and findings as parameters, which `dvc exp show` lists.
`make run` and `make study` run this first, since DVC doesn't notice that a library was upgraded, or that code
or files outside of the repository have changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from src.config import choices
from src.config.dataset_content import content_of
from src.config.datasets import GENERATED
from src.data.catalog import configure, folder_name
from src.data.errors import DataMistake
from src.measure.software import software_of
from src.run import exit_lines
from src.run.tables import write_text
from src.study.configurations import configurations

PARAMS, FOLDER = Path("params.yaml"), Path("software")


def main() -> int:
    """Run the stage and return the exit status: 0, or 2 where there is no study, or a mistake in it."""
    return exit_lines.run(_write_all)


def _write_all() -> None:
    """Write the files of the study in params.yaml that aren't as they should be."""
    study = choices.read(PARAMS).get("study") or {}
    FOLDER.mkdir(exist_ok=True)
    for name, config in configurations(study.get("cells") or {}):
        parts = software_of(config).values()
        _write(f"{name}.txt", "".join(f"{key} {known}\n" for part in parts for key, known in part.items()))
    contents = ""
    for entry in study.get("datasets") or []:
        try:
            dataset = configure(entry)
        except DataMistake as mistake:
            # The stage fetch says so, if it comes to that: `make study` is about to leave this study.
            contents += f"{entry} {mistake}\n"
            continue
        folder, code = folder_name(dataset), dataset["code"]
        _write(f"dataset-{folder}.txt", f"{dataset['reader']} {code}\n")
        made_by = code if dataset["source"] == GENERATED else None
        contents += f"{folder} {content_of(dataset)} {made_by} {entry}\n"
    _write("datasets.txt", contents)
    _write("study.yaml", yaml.safe_dump(study, sort_keys=False))


def _write(name: str, text: str) -> None:
    path = FOLDER / name
    if not path.exists() or path.read_text() != text:
        write_text(path, text)


if __name__ == "__main__":
    sys.exit(main())
