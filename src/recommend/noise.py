"""Tell how far off measured seconds may be, by how far repeated runs are off each other."""

from __future__ import annotations

import math
from statistics import NormalDist, mean

from scipy.stats import t as student

from src.predict.own import runs

# How far two runs of the same are off each other, as a logarithm, where one alone was measured.
ONCE = 0.05


def noise_of(answers: runs.Answers) -> tuple[float, int]:
    """Return the pooled spread of the logarithms of repeated runs' seconds, and its degrees of freedom.

    Without repetitions it is what is believed of them, with none.
    """
    squares, freedom = 0.0, 0
    for alike in answers.values():
        logs = [math.log(each[1]) for each in alike]
        squares += sum((each - mean(logs)) ** 2 for each in logs)
        freedom += len(logs) - 1
    return (math.sqrt(squares / freedom), freedom) if freedom else (ONCE, 0)


def spread(noise: tuple[float, int], count: int, level: float) -> float:
    """Return how far off the median of so many runs may be, as a standard deviation of a normal law.

    A median scatters by a quarter more than a mean; what few repetitions say of the noise widens it as
    Student's t does.
    """
    scatter, freedom = noise
    normal = NormalDist().inv_cdf((1 + level) / 2)
    times = float(student.ppf((1 + level) / 2, freedom)) if freedom else normal
    return (1.25 if count > 2 else 1.0) * scatter / math.sqrt(count) * times / normal
