"""Put figures of an answer into words."""

from __future__ import annotations


def duration(hours: float) -> str:
    """Return a time in the unit in which a person would say it: seconds, minutes or hours."""
    if hours < 2 / 60:
        return f"{3600 * hours:.3g} s"
    return f"{60 * hours:.3g} min" if hours < 2 else f"{hours:.3g} h"


def number(value: float) -> str:
    """Return a figure to four digits, with commas between thousands and no powers of ten."""
    return f"{float(f'{value:.4g}'):,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def energy(kilowatt_hours: float) -> str:
    """Return an energy in kWh, or in Wh where that is little."""
    little = kilowatt_hours < 0.1
    return f"{number(1000 * kilowatt_hours)} Wh" if little else f"{number(kilowatt_hours)} kWh"
