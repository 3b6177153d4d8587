"""Say how far predictions from a model's operations may be off, by what was published of such steps."""

from __future__ import annotations

from src.predict.intervals import Scores

# Errors, in logarithms, of the rates of one device that were published (`bench.one_device`), in order.
ERRORS = (
    0.016, 0.017, 0.055, 0.086, 0.103, 0.106, 0.118, 0.131, 0.140, 0.149, 0.194, 0.216, 0.261, 0.344, 0.376,
)  # fmt: skip
SCORES = Scores(ERRORS, ERRORS, frozenset())
