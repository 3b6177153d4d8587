"""Order the samples that steps see, in the same way under every strategy.

An epoch is one permutation, drawn from (seed, epoch). Step k takes the k-th run of `batch` indices, and a
data-parallel rank takes its contiguous part of those, so the ranks' parts put together are the single
worker's batch:

    order    | 7 2 9 4 | 0 5 1 8 | 3 6         batch = 4, the partial last batch is dropped
    step     |    0    |    1    |
    rank     |  0 |  1 |  0 |  1 |             world = 2

Any sample may follow any other, which is slow where the data are larger than memory. With a *window* the
order goes through them in large pieces: blocks of consecutive samples follow each other in permuted order,
and samples are permuted within a window of several blocks alone. Here of 8 samples, where a block has 2
(there are really `WINDOW_BLOCKS` blocks in a window):

    stored   | 0 1 | 2 3 | 4 5 | 6 7 | 8 9 | 10 11 | 12 13 | 14
    blocks   | 6 7 | 12 13 | 0 1 | 10 11 || 14 | 4 5 | 8 9 | 2 3     permuted; || is the end of a window
    order    | 12 7 0 11 6 1 13 10       || 5 8 14 2 9 3 4           each window permuted by itself

So a window's samples are read from few places of the disk, and are used before those of the next window.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from src.data.random_streams import RandomStream, philox

# Blocks of consecutive samples in a window: enough to mix samples that are stored far apart.
WINDOW_BLOCKS = 16


def epoch_order(samples: int, seed: int, epoch: int, window: int | None = None) -> np.ndarray:
    """Permute range(samples), int64 [samples], by the run's seed and the epoch, from 0, alone.

    The permutation sorts raw output, which ranks with other versions of numpy have too. `window` samples are
    permuted together, at least 1; `None` is all of them.
    """
    generator = philox(RandomStream.ORDER, seed, epoch)
    if window is None:
        return _permutation(generator, samples)
    size = max(1, window // WINDOW_BLOCKS)
    starts = _permutation(generator, -(-samples // size)) * size
    stored = (starts[:, np.newaxis] + np.arange(size)).ravel()
    # The last block may be shorter than the others.
    stored = stored[stored < samples]
    for start in range(0, samples, window):
        part = stored[start : start + window]
        part[:] = part[_permutation(generator, len(part))]
    return stored


def _permutation(generator: np.random.Philox, count: int) -> np.ndarray:
    return np.argsort(generator.random_raw(count), kind="stable").astype(np.int64)


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
