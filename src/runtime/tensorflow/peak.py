"""Measure the peak FLOP/s of a TensorFlow device by matrix products."""

from __future__ import annotations

import tensorflow as tf

from src.machine.devices import processor
from src.measure import peak
from src.measure.peak import PeakKey
from src.measure.rank_record import RankRecord
from src.runtime.common.context import RankContext

# Rows and columns of the matrices.
SIZE = {"CPU": 1024, "GPU": 8192}
# The first GPUs with TF32.
AMPERE = (8, 0)


def facts(context: RankContext) -> RankRecord:
    """Return the peak of this process's first device, in the precision of its run, for a rank's record."""
    kind = "GPU" if context.config.hardware.device == "gpu" else "CPU"
    details = tf.config.experimental.get_device_details(tf.config.list_physical_devices(kind)[0])
    precision = context.config.precision
    capable = details.get("compute_capability", (0, 0)) >= AMPERE
    if precision == "fp32" and capable and tf.config.experimental.tensor_float_32_execution_enabled():
        precision = "tf32"
    # A process that trains for several workers has a device for each, with an even share of its cores.
    cores = len(context.cores) // (context.config.workers // context.world_size)
    peaked = PeakKey(
        device=details.get("device_name", "GPU") if kind == "GPU" else processor(),
        cores=0 if kind == "GPU" else max(1, cores),
        precision=precision,
        library=f"tensorflow {tf.__version__}",
    )
    size = SIZE[kind]
    with tf.device(f"{kind}:0"):
        matrix = tf.random.uniform((size, size))
        matrix = tf.cast(matrix, tf.bfloat16) if precision == "bf16" else matrix

        def multiply() -> float:
            # One element of the product is there when all of it is.
            tf.linalg.matmul(matrix, matrix)[0, 0].numpy()
            return 2.0 * size**3

        return peak.facts(peaked, multiply)
