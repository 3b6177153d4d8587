"""A coordinator with TensorFlow servers of two kinds, workers and parameter servers, all on this host."""

from __future__ import annotations

from src.config import Config
from src.launch import cluster, tf_config
from src.launch.place import Place


def places(config: Config) -> list[Place]:
    """The processes to start, by the names that TensorFlow has for them."""
    return cluster.told(config, ("worker", "ps", "chief"), tf_config.environment)
