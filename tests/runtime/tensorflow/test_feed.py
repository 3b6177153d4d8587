"""TensorFlow's replicas are fed the pixels that torch's ranks are fed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from src.data.batches import training_order, training_samples
from tests.prepared_data import load_arrays
from tests.support import ROOT, config

WORDS = (
    "batch=16", "epochs=2", "dataset=synthetic", "dataset.shape=[16,12,3]", "dataset.samples=100",
    "dataset.augment=crop_flip", "dataset.shuffle_window=32",
)  # fmt: skip
# Two replicas, two steps at once, from the second step on; and an epoch of Keras's `fit`.
CODE = f"""
import pathlib, sys
import numpy as np
from src.runtime.common.context import RankContext
from src.runtime.tensorflow import feed
from tests.support import config
from tests.prepared_data import load_arrays
chosen = config("strategy=tf_mirrored", "workers=2", *{WORDS!r})
context = RankContext(chosen, 0, 1, load_arrays(chosen.dataset), pathlib.Path(), (0,))
parts = feed.replica_batches(context, 2, 2, first=1).take(2 * 6).as_numpy_iterator()
saved = {{f"part-{{n}}-{{i}}": value for n, part in enumerate(parts) for i, value in enumerate(part)}}
batches = feed.batches(context, 1).as_numpy_iterator()
saved |= {{f"batch-{{n}}-{{i}}": value for n, batch in enumerate(batches) for i, value in enumerate(batch)}}
np.savez(sys.argv[1], **saved)
"""


@pytest.mark.slow
def test_replicas_and_fit_see_the_pixels_of_the_order(tmp_path: Path) -> None:
    saved = tmp_path / "fed.npz"
    subprocess.run([sys.executable, "-c", CODE, str(saved)], cwd=ROOT, check=True, timeout=240)
    fed = np.load(saved)
    chosen = config(*WORDS)
    arrays = load_arrays(chosen.dataset)
    expected = {}
    for epoch in (0, 1):
        order = training_order(chosen, 100, epoch)
        for step in range(6):
            samples = training_samples(arrays, chosen, order[16 * step : 16 * step + 16], epoch)
            expected[6 * epoch + step] = samples.inputs[0], samples.targets[0]
    for kind in (0, 1):
        for step in range(6):
            np.testing.assert_array_equal(fed[f"batch-{step}-{kind}"], expected[6 + step][kind])
        # Steps 1 and 2, 3 and 4, then 5 alone as the epoch ends; 6 and 7, ...
        for call, steps in enumerate([(1, 2), (3, 4), (5,), (6, 7), (8, 9), (10, 11)]):
            halves = np.concatenate([fed[f"part-{2 * call + half}-{kind}"] for half in (0, 1)], axis=1)
            np.testing.assert_array_equal(halves, [expected[step][kind] for step in steps])
