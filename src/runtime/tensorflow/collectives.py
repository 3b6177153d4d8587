"""Join the cluster whose workers TensorFlow's collectives connect."""

from __future__ import annotations

import tensorflow as tf

from src.runtime.common.context import RankContext


def join_cluster(context: RankContext) -> tf.distribute.Strategy:
    """Make the strategy, which joins the cluster of `TF_CONFIG`; a process can do so once only."""
    options = context.config.strategy
    library = tf.distribute.experimental
    communication = library.CommunicationOptions(
        implementation=library.CommunicationImplementation[options["communication"].upper()],
        timeout_seconds=options["timeout_seconds"],
    )
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=communication)
