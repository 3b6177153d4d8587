"""Put figures of an answer into words."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def duration(hours: float) -> str:
    """Return a time in the unit in which a person would say it: seconds, minutes or hours."""
    if hours < 2 / 60:
        return f"{3600 * hours:.3g} s"
    return f"{60 * hours:.3g} min" if hours < 2 else f"{hours:.3g} h"


def span(hours: float, interval: tuple[float, float]) -> str:
    """Return a time with its interval."""
    low, high = interval
    return f"{duration(hours)} ({duration(low)} to {duration(high)})"


def number(value: float) -> str:
    """Return a figure to four digits, with commas between thousands and no powers of ten."""
    return f"{float(f'{value:.4g}'):,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def energy(kilowatt_hours: float) -> str:
    """Return an energy in kWh, or in Wh where that is little."""
    little = kilowatt_hours < 0.1
    return f"{number(1000 * kilowatt_hours)} Wh" if little else f"{number(kilowatt_hours)} kWh"


def without(batches: Sequence[int], counts: Sequence[int], had: Collection[tuple[int, int]]) -> list[str]:
    """Say over which numbers of devices no way divides a batch, a sentence for each batch.

    Args:
        batches: that are asked for.
        counts: of devices that are.
        had: batch and devices of each way.
    """
    said = []
    for batch in batches:
        # What divides it may be left out for other reasons, which have lines of their own.
        several = [str(count) for count in counts if batch % count and (batch, count) not in had]
        if several:
            line = f"batch={batch}: no way that is predicted divides it evenly over {' or '.join(several)}"
            said.append(f"{line} devices")
    return said
