"""Measure what a machine gives, apart from any training: its network, or what a model's steps cost on it.

    python -m src.profile network [hardware=vpn workers=2 strategy=ddp,mpi ... out=FOLDER]
    python -m src.profile model=resnet18 strategy=ddp,fsdp workers=2 batch=64,128 [... out=FOLDER]

`network` measures the links between hosts, and what each backend's exchanges take over them by size; `out` is
a folder for the result, `network.json`; without it the result is printed alone. Otherwise each cell of the
words, which are those of a sweep of `src.train`, is profiled: FOLDER/profile.json, from which
`python -m src.predict` predicts steps (docs/predict.md). By default that is profile/profile.json.
"""

from __future__ import annotations

import signal
import sys

from src.config import ConfigError
from src.profile import model, network
from src.run import exit_lines

USAGE = (
    "usage: python -m src.profile network [hardware=vpn workers=2 strategy=ddp,mpi ... out=FOLDER], or "
    "model=resnet18 [strategy=ddp,fsdp workers=2 batch=64,128 ... out=FOLDER]"
)


def main() -> int:
    """Measure as the command line says; return 0, 1 after a failure, 2 for a mistake, 130 after Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    words = sys.argv[1:]
    if {"-h", "--help"} & set(words):
        print((__doc__ or "").strip())
        return 0
    if words[:1] == ["network"]:
        return exit_lines.run(lambda: network.profile(words[1:]))
    if any(word.startswith("model=") for word in words):
        return exit_lines.run(lambda: model.profile(words))
    return exit_lines.complain(USAGE, ConfigError.exit_status)


if __name__ == "__main__":
    exit_lines.leave(main)
