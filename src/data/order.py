"""Order the samples that steps see, in the same way under every strategy.

An epoch is one permutation, drawn from (seed, epoch). Step k takes the k-th run of `batch` indices, and a
data-parallel rank takes its contiguous part of those, so the ranks' parts put together are the single
worker's batch:

    order    | 7 2 9 4 | 0 5 1 8 | 3 6         batch = 4, the partial last batch is dropped
    step     |    0    |    1    |
    rank     |  0 |  1 |  0 |  1 |             world = 2
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def epoch_order(samples: int, seed: int, epoch: int) -> np.ndarray:
    """Permute range(samples), int64 [samples], by (seed, epoch) alone.

    The permutation sorts raw Philox output: numpy guarantees a bit generator's stream over versions and
    platforms, but not the results of `Generator.permutation`, and ranks may run with other versions of numpy.
    """
    generator = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64))
    return np.argsort(generator.random_raw(samples), kind="stable").astype(np.int64)


def steps_per_epoch(samples: int, batch: int) -> int:
    """Count the whole batches in `samples`; the last partial one is dropped."""
    return samples // batch


def batch_indices(order: np.ndarray, step: int, batch: int) -> np.ndarray:
    """Return the indices, int64 [batch], that step `step` (from 0) of an epoch with order `order` trains on.

    Raises:
        IndexError: for a step past the last whole batch.
    """
    if not 0 <= step < steps_per_epoch(len(order), batch):
        raise IndexError(f"step {step} of an epoch of {steps_per_epoch(len(order), batch)} steps")
    return order[step * batch : (step + 1) * batch]


def batches(samples: int, batch: int, seed: int, first: int, last: int) -> Iterator[np.ndarray]:
    """Yield the indices, int64 [batch], of steps `first` to before `last`, counted over all epochs."""
    per_epoch = steps_per_epoch(samples, batch)
    permutation = None
    for done in range(first, last):
        epoch, step = divmod(done, per_epoch)
        if permutation is None or step == 0:
            permutation = epoch_order(samples, seed, epoch)
        yield batch_indices(permutation, step, batch)


def pieces(part: slice, most: int) -> Iterator[slice]:
    """Yield `part` in contiguous slices of at most `most` items."""
    for start in range(part.start, part.stop, most):
        yield slice(start, min(start + most, part.stop))


def even_slice(count: int, rank: int, world: int) -> slice:
    """Return rank `rank`'s contiguous part of `count` items: sizes differ by at most one, the union is all.

    Raises:
        IndexError: unless 0 <= rank < world.
    """
    if not 0 <= rank < world:
        raise IndexError(f"rank {rank} in a world of {world}")
    return slice(count * rank // world, count * (rank + 1) // world)
