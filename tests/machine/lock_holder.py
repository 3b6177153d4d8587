"""Take devices, say so, and hold them until standard input ends: `lock_holder KIND SHARED NUMBER...`."""

from __future__ import annotations

import sys

from src.machine.device_locks import Request, take

kind, shared, *numbers = sys.argv[1:]
lease = take([Request(kind, 1, tuple(map(int, numbers)), shared == "shared", len(numbers))])
print("held", flush=True)
sys.stdin.read()
