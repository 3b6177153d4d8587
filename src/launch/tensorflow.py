"""TensorFlow ranks; a single one needs no cluster."""

from __future__ import annotations

from src.config import Config


def environments(config: Config) -> list[dict[str, str]]:
    """One set of environment variables a rank."""
    return [
        {"RANK": str(rank), "WORLD_SIZE": str(config.workers), "TF_CPP_MIN_LOG_LEVEL": "3"}
        for rank in range(config.workers)
    ]
