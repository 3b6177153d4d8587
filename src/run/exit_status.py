"""Number the ways in which a rank ends, which its exit status tells the parent."""

from __future__ import annotations

import errno

OK = 0
CRASH = 1
OUT_OF_MEMORY = 77
DISK_FULL = 78
# A user's mistake that only the built model shows, such as a cut that it doesn't allow.
MISTAKE = 79
# Statuses of processes that would end in the same way if they were started again.
FINAL = (OUT_OF_MEMORY, DISK_FULL, MISTAKE)

# Errors of a file system without room, or of a user who has used up a quota there.
FULL = (errno.ENOSPC, errno.EDQUOT)
# Names of the out-of-memory errors of torch, Python and TensorFlow.
OUT_OF_MEMORY_ERRORS = ("OutOfMemoryError", "MemoryError", "ResourceExhaustedError")


def of_error(error: BaseException) -> int:
    """Return the exit status of a rank that ends by `error`.

    Out-of-memory errors are recognised by name, so that no framework is imported.
    """
    if isinstance(error, OSError) and error.errno in FULL:
        return DISK_FULL
    names = [kind.__name__ for kind in type(error).__mro__]
    if any(name in OUT_OF_MEMORY_ERRORS for name in names) or "can't allocate memory" in str(error):
        return OUT_OF_MEMORY
    return CRASH
