"""Write the shards of a dataset on all cores that this process may use."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from src.data.samples import ArraySource
from src.data.scratch import Unfinished
from src.data.shard_writer import Note, Shard, ShardWriter
from src.machine.devices import usable_cores
from src.machine.memory import MemoryKills
from src.machine.process import die_with

# Fewer bytes of samples are read sooner than processes are started.
SMALL_BYTES = 1 << 24
# A writer that is larger holds arrays, of which each process would get a copy.
LARGEST_WRITER = 1 << 26

# A worker process unpickles this with its first shard, where an error reaches the parent.
_pickled_writer = b""
_writer: ShardWriter | None = None


def write_shards(writer: ShardWriter, shards: Sequence[Shard]) -> Generator[Note]:
    """Write `shards`, and yield the note of each as soon as it is finished.

    Several processes do so if there are several cores and shards, and much to read, and if the splits can be
    pickled and aren't arrays, of which nothing need be decoded.

    Raises:
        DataError: as `ShardWriter` does.
        Unfinished: where one of the processes was killed.
    """
    processes = min(len(usable_cores()), len(shards))
    to_read = writer.layout.sample_bytes * sum(shard.stop - shard.start for shard in shards)
    pickled = _pickled(writer) if processes > 1 and to_read > SMALL_BYTES else None
    if pickled is None:
        yield from map(writer, shards)
        return
    kills, others = MemoryKills(), set(multiprocessing.active_children())
    # A fork would copy locks that this process's other threads may hold.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(os.getpid(), pickled))
    try:
        with _interrupts_kept_from_children():
            tasks = [pool.submit(_write, shard) for shard in shards]
        for task in as_completed(tasks):
            yield task.result()
    except BrokenProcessPool as error:
        reason = " for want of memory" if kills.has_another() else ""
        raise Unfinished(
            f"{writer.dataset}: a process that reads samples was killed{reason}; "
            "what is finished is kept for the next try"
        ) from error
    finally:
        # They are in the middle of shards where an error or Ctrl-C has ended the loop.
        for child in set(multiprocessing.active_children()) - others:
            child.kill()
        pool.shutdown(cancel_futures=True)


def _pickled(writer: ShardWriter) -> bytes | None:
    """Return a writer as other processes can take it, `None` if they can't or needn't."""
    if any(isinstance(split, ArraySource) for split in (writer.splits.train, writer.splits.test)):
        return None
    try:
        pickled = pickle.dumps(writer)
    except (pickle.PicklingError, AttributeError, TypeError):
        # A reader may return a class that it defines within a function, or hold an open file.
        return None
    return pickled if len(pickled) <= LARGEST_WRITER else None


def _begin(parent: int, pickled: bytes) -> None:
    """Prepare a worker process, which ends with its parent."""
    global _pickled_writer
    die_with(parent)
    _pickled_writer = pickled


def _write(shard: Shard) -> Note:
    global _writer
    if _writer is None:
        _writer = pickle.loads(_pickled_writer)
    return _writer(shard)


@contextmanager
def _interrupts_kept_from_children() -> Iterator[None]:
    """Start processes that Ctrl-C doesn't reach, from their first moment on: this one ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
