"""Say what fits into devices, before anything runs.

    python -m src.fits model=gpt2_124m dataset=gcide devices=1..64 hardware=a100_80gb batch=64

Words are those of `src.train`, but for two: `devices=1..64` are 1, 2, 4, ... 64 of them, `devices=2,6` these;
`hardware` is a data sheet of conf/hardware/. `strategy=ddp,fsdp` looks at these alone. Steps are looked at on
tensors without data, by the strategies' own code (docs/fits.md). `--json` is for programs.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Sequence

from src.config import ConfigError, command_line
from src.config.mistakes import nearest
from src.fits.rows import STRATEGIES, Row, rows
from src.predict import sheets
from src.run import exit_lines

USAGE = (
    "usage: python -m src.fits model=... dataset=... devices=1..64 hardware=a100_80gb [batch=...] [--json]"
)
JSON = "--json"
OWN = ("devices", "hardware", "strategy")
MOST_DEVICES = 2**14


def main() -> int:
    """Print what fits; return the exit status: 0, 1 where no row has figures, 2 for a mistake."""
    words = sys.argv[1:]
    if not words or {"-h", "--help"} & set(words):
        print((__doc__ or "").strip() if words else USAGE)
        return 0 if words else ConfigError.exit_status
    return exit_lines.run(lambda: _print(words))


def _print(given: Sequence[str]) -> int:
    words = command_line.flags_first([word for word in given if word != JSON])
    own: dict[str, str] = {}
    for word in [word for word in words if word.partition("=")[0] in OWN]:
        key, _, value = word.partition("=")
        if key in own or not value:
            raise ConfigError(f"{word}: {'stands there twice' if key in own else 'names nothing'}")
        own[key] = value
        words.remove(word)
    if "hardware" not in own:
        raise ConfigError("hardware=: name a data sheet of conf/hardware/, as hardware=a100_80gb")
    try:
        room = sheets.device(own["hardware"]).memory_gib
    except ConfigError as error:
        raise ConfigError(str(error).replace("device=", "hardware=", 1)) from error
    strategies = list(dict.fromkeys(own["strategy"].split(","))) if "strategy" in own else list(STRATEGIES)
    for name in strategies:
        if name not in STRATEGIES:
            raise ConfigError(
                f"strategy={name}: can't be looked at before it runs; {', '.join(STRATEGIES)} can; did you "
                f"mean {nearest(name, STRATEGIES)}?"
            )
    counts = devices(own.get("devices", "1..8"))
    # What a model's builder prints is not part of the answer.
    with contextlib.redirect_stdout(sys.stderr):
        found = rows(words, strategies, counts, room)
    if JSON in given:
        print(json.dumps([row.as_json() for row in found], indent=2))
    else:
        _table(found, own["hardware"], room)
    return 0 if any(row.parts for row in found) else 1


def devices(text: str) -> list[int]:
    """Read numbers of devices: `1..64` are the powers of two between them, `2,6` these; in order.

    Raises:
        ConfigError: for what is neither.
    """
    if not re.fullmatch(r"\d+(\.\.\d+)?(,\d+(\.\.\d+)?)*", text):
        raise ConfigError(f"devices={text}: must be numbers, as 8 or 2,6, or powers of two, as 1..64")
    found: set[int] = set()
    for word in text.split(","):
        first, _, last = word.partition("..")
        numbers = [int(first)] if not last else [2**k for k in range(15) if int(first) <= 2**k <= int(last)]
        found.update(numbers)
    if not found or min(found) < 1 or max(found) > MOST_DEVICES:
        raise ConfigError(f"devices={text}: must be from 1 to {MOST_DEVICES}")
    return sorted(found)


def _table(found: Sequence[Row], hardware: str, room: float) -> None:
    """Print the rows of a table, and below it what isn't there and why."""
    from rich.console import Console
    from rich.table import Table

    titles = ("strategy", "devices", "samples", "GiB", "at start", "fits", "most samples")
    parts = ("weights", "gradients", "optimizer", "activations", "exchange", "other")
    table = Table(*titles, *parts, title=f"one device of {hardware}, {room:g} GiB", box=None)
    for row in found:
        if row.parts:
            table.add_row(*row.cells(parts))
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    print("samples: of one micro-batch on a device; most samples: with which it still fits; parts in GiB")
    for line in reasons(found):
        print(line)


def reasons(found: Sequence[Row]) -> list[str]:
    """Return a line for each reason why something can't be told, with all numbers of devices that have it."""
    devices_of: dict[tuple[str, str], list[Row]] = {}
    for row in found:
        if row.reason:
            alike = re.sub(r"workers=\d+|\d+ devices|\d+ samples", "", row.reason)
            devices_of.setdefault((row.strategy, alike), []).append(row)
    return [
        f"{strategy} on {', '.join(str(row.devices) for row in alike)}: {alike[0].reason}"
        for (strategy, _), alike in devices_of.items()
    ]


if __name__ == "__main__":
    exit_lines.leave(main)
