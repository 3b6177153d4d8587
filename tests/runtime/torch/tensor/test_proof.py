"""A plan is proven before anything is trained: what computes something else is refused, on all ranks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from tests.support import config, ranks

pytestmark = pytest.mark.slow

MODULE = "tests.runtime.torch.tensor.proof_rank"
LIMIT_SECONDS = 300
PAIR = "strategy.plan=[first:colwise,last:rowwise]"
HEADS = "strategy.plan=[between.query:colwise,between.key:colwise,between.value:colwise,between.out:rowwise]"
CASES = {
    "normed": (("normed",), "proven"),
    "heads": (("heads",), "proven"),
    "dropping": (("dropping",), "proven, but for draws"),
    "missing-sum": (("normed",), "computes something else: output 0 differs in training by"),
    "missing-sum-dropping": (("dropping",), "computes something else: output 0 differs in evaluation by"),
    "swapped-shard": (("heads",), "computes something else: output 0 differs in training by"),
    "mixed": (("mixed", PAIR), "split by strategy.plan the model computes something else: output 0"),
    # Its outputs are those of the whole model.
    "scaled": (("scaled", PAIR), "something else: the gradient of between.scale differs in training"),
    "fixed": (("fixed_heads", HEADS), "computes something else: output 0 differs in training"),
    "alone": (("normed", "strategy.plan=[1:colwise]"), "the model fails (mat1 and mat2 shapes"),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("proofs")
    common = ("strategy=tensor_parallel", "workers=2", "model=custom", "dataset.limit=64", "batch=16")
    for name, ((model, *words), _) in CASES.items():
        chosen = config(*common, f"model.path=tests.plugin.model.split.{model}", *words)
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(dataclasses.asdict(chosen)))
    with ranks(MODULE, [folder], 2, folder) as started:
        started.wait(LIMIT_SECONDS)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_how_a_proof_ends(outcomes: Path, name: str) -> None:
    first, second = ((outcomes / f"{name}-{rank}.txt").read_text() for rank in (0, 1))
    assert first == second
    assert CASES[name][1] in first
