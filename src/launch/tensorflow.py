"""One TensorFlow process that holds the devices of all workers; it needs no cluster."""

from __future__ import annotations

from src.config import Config
from src.launch import place
from src.launch.place import Place

# Chatter of its libraries that isn't about an error.
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}


def places(config: Config) -> list[Place]:
    """The processes to start: there is one."""
    return [place.of_rank(0, 1, tuple(range(config.workers)), QUIET)]
