"""Show the cut of a model, and what is predicted of it, to the person who waits."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from src.partition.plan import Plan


def show(plan: Plan) -> str:
    """Return a plan as a table of text."""
    table = Table(
        title=f"cut of {plan.operations} operations by {plan.method}", title_justify="left", box=None
    )
    apart = len(set(plan.devices)) == len(plan.devices)
    for name in ("stage", "operations", "begins with", "parameters", "time", "transfer", "memory", "sends"):
        table.add_column(name, justify="left" if name in ("begins with", "sends") else "right")
    for number, stage in enumerate(plan.stages):
        sends = f"{len(stage.sends)}: {stage.sent_bytes / 2**10:,.0f} KiB" if stage.sends else "-"
        table.add_row(
            str(number) if apart else f"{number} on {plan.devices[number]}",
            f"{stage.start}-{stage.stop - 1}",
            stage.first,
            f"{stage.parameters:,}",
            f"{stage.seconds * 1e3:.2f} ms",
            f"{stage.transfer_seconds * 1e3:.2f} ms",
            f"{stage.memory_bytes / 2**20:,.1f} MiB",
            sends,
        )
    console = Console(width=110, no_color=True)
    with console.capture() as caught:
        console.print(table)
        console.print(
            f"Times are of one micro-batch; {plan.microbatches} of them make a step, "
            f"predicted at {plan.predicted_step_seconds * 1e3:.1f} ms without the optimizer."
        )
        for number, stage in enumerate(plan.stages):
            if stage.again:
                count = sum(stop - start for start, stop in stage.again)
                console.print(
                    f"Stage {number} computes {count} of its {stage.stop - stage.start} operations again, "
                    f"{stage.again_seconds * 1e3:.2f} ms: {', '.join(stage.again_names)}."
                )
    return "\n".join(line.rstrip() for line in caught.get().splitlines())
