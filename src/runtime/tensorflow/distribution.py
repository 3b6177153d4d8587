"""Make TensorFlow's strategies: over this process's devices, or over the workers of a cluster."""

from __future__ import annotations

import tensorflow as tf

from src.compat.tensorflow import set_heartbeat_timeout
from src.runtime.common.context import RankContext
from src.runtime.tensorflow import setup


def mirrored_strategy(context: RankContext) -> tf.distribute.Strategy:
    """Make a MirroredStrategy over this process's devices, with the configured reduction of gradients."""
    devices = setup.configure(context)
    reduction = context.config.strategy["reduction"]
    if reduction == "auto":
        # NCCL has no kernels for CPUs.
        reduction = "nccl" if devices[0].startswith("GPU") else "one_device"
    reductions = {
        "nccl": tf.distribute.NcclAllReduce,
        "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
        "one_device": tf.distribute.ReductionToOneDevice,
    }
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=reductions[reduction]())


def join_cluster(context: RankContext) -> tf.distribute.Strategy:
    """Make the strategy, which joins the cluster of `TF_CONFIG`; a process can do so once only."""
    options = context.config.strategy
    # A collective that waits too long says which; it is to be the first to.
    set_heartbeat_timeout(2 * options["timeout_seconds"])
    library = tf.distribute.experimental
    communication = library.CommunicationOptions(
        implementation=library.CommunicationImplementation[options["communication"].upper()],
        timeout_seconds=options["timeout_seconds"],
    )
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=communication)
