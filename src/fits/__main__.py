"""Say what fits into devices, before anything runs.

    python -m src.fits model=gpt2_124m dataset=gcide devices=1..64 hardware=a100_80gb batch=64

Words are those of `src.train`, but for two: `devices=1..64` are 1, 2, 4, ... 64 of them, `devices=2,6` these;
`hardware` is a data sheet of conf/hardware/. `strategy=ddp,fsdp` looks at these alone. Steps are looked at on
tensors without data, by the strategies' own code (docs/fits.md). `--json` is for programs.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Sequence

from src.config import ConfigError
from src.predict import asked, held, sheets
from src.predict.held import Held
from src.predict.own import command
from src.run import exit_lines

USAGE = (
    "usage: python -m src.fits model=... dataset=... devices=1..64 hardware=a100_80gb [batch=...] [--json]"
)
JSON = "--json"
OWN = ("devices", "hardware", "strategy")


def main() -> int:
    """Print what fits; return the exit status: 0, 1 where no row has figures, 2 for a mistake."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    words = sys.argv[1:]
    if not words or {"-h", "--help"} & set(words):
        print((__doc__ or "").strip() if words else USAGE)
        return 0 if words else ConfigError.exit_status
    return exit_lines.run(lambda: _print(words))


def _print(given: Sequence[str]) -> int:
    question = asked.read([word for word in given if word != JSON], OWN)
    room = sheets.device(question.hardware).memory_gib
    # What a model's builder prints is not part of the answer.
    with contextlib.redirect_stdout(sys.stderr):
        found = held.of(question)
    if JSON in given:
        print(json.dumps([each.as_json() for each in found], indent=2))
    else:
        _table(found, question.hardware, room)
    sys.stdout.flush()
    command.note(held.entries(question, found))
    return 0 if any(each.parts for each in found) else 1


def _table(found: Sequence[Held], hardware: str, room: float) -> None:
    """Print the rows of a table, and below it what isn't there and why."""
    from rich.console import Console
    from rich.table import Table

    titles = ("strategy", "devices", "samples", "GiB", "at start", "fits", "most samples")
    parts = ("weights", "gradients", "optimizer", "activations", "exchange", "other")
    table = Table(*titles, *parts, title=f"one device of {hardware}, {room:g} GiB", box=None)
    for each in found:
        if each.parts:
            table.add_row(*each.cells(parts))
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    print("samples: of one micro-batch on a device; most samples: with which it still fits; parts in GiB")
    for line in held.reasons(found):
        print(line)


if __name__ == "__main__":
    exit_lines.leave(main)
