"""One TensorFlow process that holds the devices of all workers; it needs no cluster."""

from __future__ import annotations

from src.config import Config


def environments(config: Config) -> list[dict[str, str]]:
    """One set of environment variables a rank: there is one."""
    return [{"RANK": "0", "WORLD_SIZE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}]
