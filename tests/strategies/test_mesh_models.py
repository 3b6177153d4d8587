"""Every kind of model on every mesh of 2, 4 and 8 ranks computes what one device computes.

Ten float64 steps, to 1e-9, buffers included; one of each kind is in test_mesh_parity.py and
test_tensor_parity.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.strategies import parity
from tests.strategies.meshes import HAS_TRANSFORMERS, LLAMA, TEXT, copies, huggingface, hybrid
from tests.strategies.parity import CNN, MLP, Case, differences, gaps

# Fifteen ranks on two cores.
LIMIT_SECONDS = 3000
pytestmark = [pytest.mark.long, pytest.mark.timeout(LIMIT_SECONDS)]

GPT2_SIZES = {
    "n_layer": 2,
    "n_embd": 16,
    "n_head": 2,
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
}
VIT_SIZES = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}


@dataclass(frozen=True)
class Model:
    """Both of two stages have `shared`, by its name there and in the whole model; none has `unread`."""

    words: tuple[str, ...]
    shared: tuple[str, str] | None = None
    unread: str | None = None
    normed: bool = False


WHOLE = {
    "mlp": Model(MLP),
    "cnn": Model(CNN),
    # Of fewer values, or at a higher rate, BatchNorm grows rounding errors a thousandfold a step.
    "resnet18": Model(("model=resnet18", "batch=64", "optimizer.lr=0.001"), normed=True),
    "gpt": Model(("model=gpt", "model.layers=2", "model.width=32", "model.heads=8", *TEXT)),
    "GPT2LMHeadModel": Model(
        huggingface("GPT2LMHeadModel", GPT2_SIZES, *TEXT), shared=("lm_head.weight", "transformer.wte.weight")
    ),
    "LlamaForCausalLM": Model(LLAMA, unread="model.rotary_emb.original_inv_freq"),
    "ViTForImageClassification": Model(huggingface("ViTForImageClassification", VIT_SIZES, "batch=32")),
}
VIT = Model(("model=vit", "model.patch=7", "model.layers=2", "model.width=32", "model.heads=8", "batch=32"))
SPLIT = {
    "mlp": WHOLE["mlp"],
    "gpt": WHOLE["gpt"],
    "vit": VIT,
    "LlamaForCausalLM": WHOLE["LlamaForCausalLM"],
}
FSDP = ("strategy=fsdp", "strategy.group_mb=0.3")
# Name -> words, number of ranks -> parts of a batch, micro-batches of each part.
MESHES = {
    "fsdp": (FSDP, {2: 2, 4: 4, 8: 8}, 1),
    "fsdp that keeps what it gathers": ((*FSDP, "strategy.reshard=false"), {2: 2, 4: 4, 8: 8}, 1),
    "copies of stages": (hybrid(pipeline=2), {4: 2, 8: 4}, 2),
    "stages of shards": (hybrid(pipeline=2, shard=2), {4: 2, 8: 4}, 2),
    "copies of shards": (hybrid(shard=2, microbatches=1), {4: 4, 8: 8}, 1),
}
SPLIT_MESHES = {
    "parts": (("strategy=tensor_parallel",), (2, 4, 8)),
    "copies of parts": (hybrid(tensor=2), (4, 8)),
}
FRACTION = {2: "half", 4: "quarter", 8: "eighth"}
RANKS = (2, 4, 8)


def reference(model: Model, parts: int, microbatches: int) -> Case:
    """One device; BatchNorm's statistics are a micro-batch's, and the first rank's are kept."""
    if not model.normed:
        return Case("one device", model.words)
    change = f"buffers of the first {FRACTION[parts]}"
    count = parts * microbatches
    return Case(f"one device in {count}, {change}", (*model.words, f"microbatches={count}"), change)


def named_in_stages(tensors: Mapping[str, np.ndarray], model: Model) -> Iterator[tuple[str, np.ndarray]]:
    """Tensors of the whole model by the names that stages have for them."""
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        if model.shared is not None and name == model.shared[1]:
            yield f"{kind}/{model.shared[0]}", value
        elif name != model.unread:
            yield key, value


def check(held: Model, cases: dict[Case, Case], folder: Path) -> None:
    """Train `cases`, by their references, and say how far apart they are."""
    jobs: parity.Jobs = {"alone": (tuple(dict.fromkeys(cases.values())), "single", 1)}
    for world in RANKS:
        chosen = tuple(case for case in cases if f"workers={world}" in case.words)
        jobs |= {str(world): (chosen, "fsdp", world)}
    parity.train(jobs, folder, limit=LIMIT_SECONDS)
    trained = parity.outcomes(jobs, folder)
    wrong = []
    for case, one in cases.items():
        (expected,) = trained[one.name]
        staged = held if "strategy.pipeline=2" in case.words else Model(())
        expected = replace(expected, tensors=dict(named_in_stages(expected.tensors, staged)))
        shared = None if staged.shared is None else staged.shared[0]
        for number, copy in enumerate(copies(trained[case.name], case.words, shared=shared)):
            print(f"{case.name}, copy {number}: {max(gaps(copy, expected).values()):.1e}")
            # Copies keep their own statistics of BatchNorm; the first one's are evaluated.
            own = {"buffers"} if held.normed and number else set()
            if differing := set(differences(copy, expected)) - own:
                wrong.append((case.name, number, differing, gaps(copy, expected)))
        if trained[case.name][0].evaluation != pytest.approx(expected.evaluation, rel=1e-5):
            wrong.append((case.name, trained[case.name][0].evaluation, expected.evaluation))
    assert not wrong, "\n".join(map(str, wrong))


def skip_without_library(model: Model) -> None:
    if "model=huggingface" in model.words and not HAS_TRANSFORMERS:
        pytest.skip("transformers isn't installed")


@pytest.mark.parametrize("name", WHOLE)
def test_shards_and_stages_are_one_device(name: str, tmp_path: Path) -> None:
    model = WHOLE[name]
    skip_without_library(model)
    # A weight at both ends is in both stages, whose gradients are summed; shards can't be, and one stage with
    # all of the model leaves the other one nothing to shard.
    reduced = ("strategy.tied=reduce",) if model.shared else ()
    meshes = {mesh: each for mesh, each in MESHES.items() if mesh != "stages of shards" or not reduced}
    cases = {
        Case(
            f"{mesh} on {world}",
            (*words, *model.words, f"workers={world}", *(reduced if "stages" in mesh else ())),
        ): reference(model, parts, microbatches)
        for mesh, (words, worlds, microbatches) in meshes.items()
        for world, parts in worlds.items()
    }
    check(model, cases, tmp_path)


@pytest.mark.parametrize("name", SPLIT)
def test_parts_of_layers_are_one_device(name: str, tmp_path: Path) -> None:
    model = SPLIT[name]
    skip_without_library(model)
    cases = {
        Case(f"{mesh} on {world}", (*words, *model.words, f"workers={world}")): reference(model, 1, 1)
        for mesh, (words, worlds) in SPLIT_MESHES.items()
        for world in worlds
    }
    check(model, cases, tmp_path)
