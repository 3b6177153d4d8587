"""Say whether a distributed training computes what one device does: `python -m src.audit strategy=ddp ...`.

Words are those of `src.train`; several values, `strategy=ddp,pipeline`, are audited one after the other.
Each takes ten steps in float64, and then in the run's own precision, beside one device with the same samples.
Where they differ, the first difference is named, and each cause that may be at work is tested by changing it
alone. With `--resume` a run that is stopped after five steps and goes on at its checkpoint is held against
one that isn't stopped, too. `out` is the folder of `audit.json` (`runs/audit-<strategies>`). The exit status
is 0 where all are the same, and 3 where one isn't.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from src.audit import cells
from src.audit.finding import Finding
from src.audit.records import KINDS
from src.audit.runs import Runner
from src.audit.search import Audit
from src.config import CannotRunHere, Config, ConfigError, own_training
from src.launch.cell_checks import bring_data, check_launch
from src.launch.supervise import inspection
from src.machine.folders import obstacle
from src.run import exit_lines, leases
from src.run.tables import write_text

USAGE = "usage: python -m src.audit strategy=ddp[,pipeline,...] workers=2 model=... dataset=... [--resume]"
AUDIT = "audit.json"
RESUME = "--resume"


def main() -> int:
    """Audit what the command line names; return 0, 3 after a difference, 1, 2 or 130 as `src.train` does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    words = sys.argv[1:]
    if not words or {"-h", "--help"} & set(words):
        print(__doc__.strip() if words else USAGE)
        return 0 if words else ConfigError.exit_status
    return exit_lines.run(lambda: _audit(words))


def _audit(given: Sequence[str]) -> int:
    """Audit each cell of the command line, print what was found, and write it; return the exit status."""
    named = [word.partition("=")[2] for word in given if word.startswith("out=")]
    if len(named) > 1:
        raise ConfigError(f"out={named[1]}: stands there twice; leave one away")
    words = [word for word in given if not word.startswith("out=") and word != RESUME]
    pairs = cells.pairs(words)
    both = [config for pair in pairs for config in (pair.run, pair.plain)]
    for config in both:
        _check(config, resumes=RESUME in given)
    bring_data(both)
    inspection.inspect(both)
    names = "-".join(dict.fromkeys(cell.strategy["name"] for cell in both[::2]))
    path = Path(named[0] if named and named[0] else f"runs/audit-{names}", AUDIT)
    if reason := obstacle(path.parent):
        raise ConfigError(f"out={path.parent}: {reason}")
    found: list[Finding] = []
    with (
        contextlib.closing(leases.take(both)) as lease,
        tempfile.TemporaryDirectory(prefix="scaleguide-") as folder,
    ):
        runner = Runner(Path(folder), lease)
        for pair in pairs:
            print(f"{pair.label}, {cells.STEPS} steps:", flush=True)
            audit = Audit(runner, pair)
            found.append(audit.find())
            if RESUME in given:
                found.append(audit.find_resumed())
    _print(found)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "steps": cells.STEPS,
        "findings": [each.as_json() for each in found],
        "seconds": runner.seconds,
    }
    write_text(path, json.dumps(content, indent=1, allow_nan=False))
    print(path)
    return max(finding.status for finding in found)


def _check(config: Config, *, resumes: bool) -> None:
    """Raise `ConfigError` where a configuration can't be audited, here or at all."""
    if config.strategy.get("capacity"):
        raise ConfigError(
            f"strategy={config.strategy['name']}: trains a model on each device, and no common one"
        )
    cells.check_claims(config)
    if own_training.is_own(config) and (resumes or config.strategy["name"] in cells.RULES):
        word = RESUME if resumes else f"strategy={config.strategy['name']}"
        raise ConfigError(f"{word}: a LightningModule's own update is not audited so; leave it away")
    if resumes and not config.supports.checkpoints:
        raise ConfigError(
            f"{RESUME}: strategy {config.strategy['name']} writes no checkpoints; leave it away"
        )
    try:
        check_launch(config)
    except CannotRunHere as error:
        raise ConfigError(str(error)) from error


def _print(found: Sequence[Finding]) -> None:
    """Print the table of all findings, and each in sentences."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    headings = ["", *KINDS.values(), found[0].precision, "rounding", "", "cause"]
    title = "largest relative gaps in float64, and of the loss in the run's own precision"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for finding in found:
        table.add_row(*finding.row())
    print(flush=True)
    console.print(table)
    for finding in found:
        print(flush=True)
        for sentence in finding.sentences():
            console.print(Text(sentence))
    print(flush=True)


if __name__ == "__main__":
    exit_lines.leave(main)
