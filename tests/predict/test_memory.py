"""What a transformer's training holds, on the papers' own examples."""

from __future__ import annotations

import pytest

from src.predict.memory import GIB, fits, predicted_bytes
from src.predict.row import parse
from src.predict.step import Step

# The 22B model of Korthikanti 2022, table 3: 48 layers of 6,144, 64 heads, eight parts of each layer.
ROW = {
    "device": "a100_80gb", "devices": "8", "tensor": "8", "precision": "fp16", "model": "transformer",
    "layers": "48", "hidden": "6144", "heads": "64", "sequence": "2048", "vocabulary": "51200",
    "global_batch": "4", "micro_batch": "4",
}  # fmt: skip


def held(**cells: str) -> float:
    found = predicted_bytes(Step(parse({**ROW, **cells})))
    assert found is not None
    return found


def test_activations_are_those_of_the_paper() -> None:
    tokens, hidden = 4 * 2048, 6144
    # Equation 2, a layer's s b h (10 + 24 / t + 5 a s / (h t)), and what sequence parallelism and selective
    # recomputation leave of it (equations 4 and 5, table 2).
    whole = tokens * hidden * (10 + 24 / 8 + 5 * 64 * 2048 / (hidden * 8))
    parallel = tokens * hidden / 8 * (34 + 5 * 64 * 2048 / hidden)
    assert held() - held(sequence_parallel="true") == pytest.approx(48 * (whole - parallel), rel=1e-6)
    selective = held(sequence_parallel="true", recompute="selective")
    scores = tokens * hidden / 8 * 5 * 64 * 2048 / hidden
    assert held(sequence_parallel="true") - selective == pytest.approx(48 * scores, rel=1e-6)


def test_shards_divide_weights_gradients_and_moments() -> None:
    small = {
        "tensor": "1",
        "layers": "12",
        "hidden": "768",
        "heads": "12",
        "sequence": "128",
        "global_batch": "8",
    }
    copies, shards = held(**small, data="8", micro_batch="1"), held(**small, shard="8", micro_batch="1")
    parameters = 12 * (12 * 768**2 + 4 * 768) + 51200 * 768
    # Rajbhandari 2020, section 3: 16 bytes a parameter; two layers are whole.
    two = 4 * (12 * 768**2 + 4 * 768)
    assert copies - shards == pytest.approx(16 * parameters * 7 / 8 - two, rel=1e-6)


def test_a_pipeline_under_1f1b_holds_as_many_micro_batches_as_it_has_stages() -> None:
    rows = {"tensor": "1", "pipeline": "8", "global_batch": "64", "micro_batch": "1"}
    less = held(**rows, schedule="1f1b")
    layer = 2048 * 6144 * (34 + 5 * 64 * 2048 / 6144)
    assert held(**rows, schedule="gpipe") - less == pytest.approx(6 * layer * (64 - 8), rel=1e-6)


def test_what_fits_leaves_room_for_what_a_framework_takes() -> None:
    step = Step(parse(ROW))
    assert fits(step, 77.9 * GIB) and not fits(step, 78.1 * GIB)


def test_a_model_without_shapes_has_no_prediction() -> None:
    row = {
        "device": "k80",
        "devices": "1",
        "model": "m",
        "one_device_samples_per_second": "1",
        "global_batch": "1",
    }
    assert predicted_bytes(Step(parse(row))) is None
