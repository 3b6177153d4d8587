"""Write a stand-in for the GCIDE, a dictionary of made-up words in its layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from src.data.generated.randomness import Draws

FILE = "gcide.dict"
# Bytes of the original; a stand-in has this part of them at least.
BYTES, LEAST = 39_952_321, 1 << 18
BEGINNINGS = ("b", "br", "d", "f", "gl", "k", "l", "m", "n", "p", "s", "st", "t", "v")
MIDDLES = ("a", "e", "i", "o", "u", "ea", "ou")
ENDS = ("l", "n", "r", "s", "th", "m")
KINDS = ("bird", "fish", "tool", "cloth", "stone", "tree", "coin", "ship", "song", "measure")
MANNERS = ("small", "common", "large", "rare", "striped", "old", "pale", "heavy", "narrow", "round")
USES = ("carry water", "bind sheaves", "mark the hours", "cross a river", "weigh grain", "frighten crows")
PLACES = ("Northern Europe", "the West Indies", "Scotland", "the Levant", "New England", "Ireland")


def write(target: Path, *, fraction: float, seed: int, options: dict[str, Any]) -> None:
    """Write gcide.dict to the folder `target`: `fraction` of the original's bytes, but 256 KiB at least."""
    draws, size, entries = Draws(seed, "gcide"), max(LEAST, round(BYTES * fraction)), []
    while size > 0:
        entries.append(_entry(draws))
        size -= len(entries[-1])
    # As in a dictionary, of which a beginning has words of one letter alone.
    (target / FILE).write_text("".join(sorted(entries)), encoding="ascii")


def _entry(draws: Draws) -> str:
    """Draw a word with its definition, and often a note."""
    syllables = [
        draws.pick(BEGINNINGS) + draws.pick(MIDDLES) + draws.pick(ENDS) for _ in range(draws.whole(1, 3))
    ]
    word, kind = "".join(syllables).capitalize(), draws.pick(KINDS)
    lines = [
        f"{word} \\{chr(34).join(syllables).capitalize()}\\, n.",
        f"   A {draws.pick(MANNERS)} {kind} of {draws.pick(PLACES)}, used to {draws.pick(USES)}.",
        "   [1913 Webster]",
    ]
    if draws.chance(0.4):
        lines[2:2] = ["", f"   Note: The {draws.pick(MANNERS)} {word.lower()} is the best known {kind}."]
    return "\n".join([*lines, "", ""])
