"""Hold a choice against rules of thumb that papers give, and say which of these it follows or breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from src.recommend.candidate import Candidate
from src.report.verdict.objective import THROUGHPUT


@dataclass(frozen=True)
class RuleOfThumb:
    """A rule of thumb.

    Attributes:
        said: the rule, as a clause.
        source: where it stands.
        holds: whether a choice follows it; `None` where it isn't about such a choice. Taken are the choice,
            the one of one device, if any, and the devices of a node.
        of_rates: whether it is about how fast a training is.
    """

    said: str
    source: str
    holds: Callable[[Candidate, Candidate | None, int], bool | None]
    of_rates: bool = False


def _tensor_within_a_node(chosen: Candidate, alone: Candidate | None, per_node: int) -> bool | None:
    return None if chosen.degrees.tensor == 1 else chosen.degrees.tensor <= per_node


def _enough_microbatches(chosen: Candidate, alone: Candidate | None, per_node: int) -> bool | None:
    stages = chosen.degrees.pipeline
    return None if stages == 1 else chosen.microbatches >= 4 * stages


def _copies_where_it_fits(chosen: Candidate, alone: Candidate | None, per_node: int) -> bool | None:
    if alone is None or not alone.fits or chosen.devices == 1:
        return None
    return chosen.degrees.tensor == chosen.degrees.pipeline == 1


def _divided_where_it_does_not(chosen: Candidate, alone: Candidate | None, per_node: int) -> bool | None:
    if alone is None or alone.fits:
        return None
    return chosen.strategy not in ("single", "ddp")


def _enough_to_do(chosen: Candidate, alone: Candidate | None, per_node: int) -> bool | None:
    if chosen.devices == 1:
        return None
    return chosen.parts.compute >= chosen.parts.exchange


RULES = (
    RuleOfThumb(
        "split layers among the devices of one node alone",
        "Narayanan 2021, section 3.2, takeaway 1",
        _tensor_within_a_node,
    ),
    RuleOfThumb(
        "give a pipeline four times as many micro-batches as it has stages",
        "Huang 2019",
        _enough_microbatches,
    ),
    RuleOfThumb(
        "take data parallelism for throughput",
        "paper 4, discussion of ResNet-101",
        _copies_where_it_fits,
        of_rates=True,
    ),
    RuleOfThumb(
        "divide a model that doesn't fit into one device",
        "Rajbhandari 2020, section 1",
        _divided_where_it_does_not,
    ),
    RuleOfThumb(
        "divide work only where to compute it takes longer than to wait for what is sent",
        "paper 3, discussion of its times",
        _enough_to_do,
        of_rates=True,
    ),
)


def sentences(chosen: Candidate, alone: Candidate | None, per_node: int, aim: str) -> list[str]:
    """Return a sentence for each rule that is about such a choice for an aim."""
    said = []
    for rule in (each for each in RULES if not each.of_rates or aim == THROUGHPUT):
        holds = rule.holds(chosen, alone, per_node)
        if holds is not None:
            said.append(f"{'Follows' if holds else 'Breaks'}: {rule.said} ({rule.source}).")
    return said
