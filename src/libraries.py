"""Write the versions of the libraries on which every cell of a study depends.

This is the stage `libraries` of dvc.yaml:

    python -m src.libraries     # writes libraries.txt, if anything has changed

`make run` and `make study` run it first, so that after an upgrade every cell is measured again.
"""

from __future__ import annotations

import contextlib
import platform
import re
import sys
from importlib import metadata
from pathlib import Path

from src.run.tables import write_text

FILE = Path("libraries.txt")
PROJECT = "scaleguide"
# Libraries that no run imports: their upgrade must not cost hours of measuring.
OF_REPORTS = ("dvc", "jinja2", "matplotlib")


def main() -> int:
    """Write the file unless it holds these versions already; return the exit status."""
    lines = [f"python {platform.python_version()}", *versions()]
    text = "".join(f"{line}\n" for line in lines)
    if not FILE.exists() or FILE.read_text() != text:
        write_text(FILE, text)
    return 0


def versions() -> list[str]:
    """Return the name and version of each installed library on which runs depend, in order of names."""
    found = []
    for requirement in metadata.requires(PROJECT) or []:
        name, _, marker = requirement.partition(";")
        if "extra" in marker:
            continue
        name = re.split(r"[^\w.-]", name.strip(), maxsplit=1)[0]
        if name in OF_REPORTS:
            continue
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return sorted(found)


if __name__ == "__main__":
    sys.exit(main())
