"""Print tables in a terminal, or into a file as if it were one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from src.report.verdict.verdicts import Verdict
from src.report.views import View
from src.run.status import Status

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 120
# Columns that printed tables leave out, in this order, until a line fits; the files have all of them.
SPARED = (
    "T1/(N TN)", "own eff.", "train acc.", "saved", "state", "payload", "input", "helpers", "to target",
    "stolen", "waited", "step", "seed", "scaling", "data", "rounding", "gap", "epoch", "ideal b.",
    "bubble", "effic.", "over", "router", "payload/b.", "trips",
)  # fmt: skip
# Widths to which texts may be folded: the first column, and any other. Numbers are never folded.
FOLDED = 26, 14


def print_views(shown: Sequence[View]) -> None:
    """Print tables, as wide as the terminal but no wider than `WIDTH`."""
    from rich.table import Table
    from rich.text import Text

    console = _console()
    for view in shown:
        widths = _fitting_columns(view, console.width)
        table = Table(title=view.title, title_justify="left", box=None, padding=(0, 1), pad_edge=False)
        for column, width in widths.items():
            numeric = view.numeric[column]
            table.add_column(
                view.headings[column],
                justify="right" if numeric else "left",
                no_wrap=numeric,
                overflow="fold",
                width=width,
            )
        for status, cells in view.rows:
            row = [Text(cells[column]) for column in widths]
            table.add_row(*row, style=None if status == Status.OK else "yellow")
        console.print(table)
        for note in view.notes:
            console.print(Text(note, style="dim"))
        console.print()


def print_verdicts(found: Sequence[Verdict]) -> None:
    """Print the verdicts of a study, a paragraph each."""
    from rich.padding import Padding
    from rich.text import Text

    console = _console()
    for verdict in found:
        console.print(Text(f"verdict by {verdict.aim}: {verdict.title}", style="bold"))
        text = " ".join(sentence.text for sentence in verdict.sentences)
        console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))


def _console() -> Console:
    """Return a console as wide as the terminal, but no wider than `WIDTH`."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal or console.width > WIDTH:
        console = Console(width=WIDTH, highlight=False)
    return console


def _fitting_columns(view: View, width: int) -> dict[int, int]:
    """Return the columns that fit on a line of `width` characters, as the width of each by index."""
    widths: dict[int, int] = {}
    longest = [
        max([len(heading), *(len(cells[column]) for _, cells in view.rows)])
        for column, heading in enumerate(view.headings)
    ]
    for column, most in enumerate(longest):
        widths[column] = most if view.numeric[column] else min(most, FOLDED[column > 0])
    for heading in SPARED:
        if sum(widths.values()) + 2 * len(widths) > width and heading in view.headings:
            del widths[view.headings.index(heading)]
    room = width - sum(widths.values()) - 2 * len(widths)
    for column, least in widths.items():
        # Texts are folded no more than they must be.
        wider = min(longest[column] - least, max(0, room))
        widths[column], room = least + wider, room - wider
    return widths
