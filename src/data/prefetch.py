"""Do work ahead of its consumer, in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(calls: Iterable[Callable[[], T]], threads: int) -> Generator[T]:
    """Yield the results of `calls`, in their order, while as many further ones as `threads` are in progress.

    Without a thread each call is made when its result is asked for. An exception of a call is raised where
    its result would be yielded. Calls are taken from the consumer's thread, one by one; those that haven't
    begun are given up when the generator is closed, and its threads have ended then.
    """
    if not threads:
        for call in calls:
            yield call()
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="feed")
    try:
        begun: deque[Future[T]] = deque()
        for call in calls:
            begun.append(pool.submit(call))
            if len(begun) > threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
