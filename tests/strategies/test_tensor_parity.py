"""Layers that ranks hold in parts compute what one device computes: ten float64 steps, to 1e-9."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.strategies.parity import (
    ADAMW,
    LIMIT_SECONDS,
    MLP,
    MODULE,
    SAVED,
    TERMS,
    Case,
    Outcome,
    differences,
    gaps,
    joined,
    read,
    write,
)
from tests.support import ranks

pytestmark = pytest.mark.slow

TEXT = ("dataset=gcide", "dataset.source=generated", "dataset.options.length=16", "batch=8")
SIZES = ("num_hidden_layers=2", "hidden_size=32", "intermediate_size=48", "num_attention_heads=4")
MODELS = {
    "mlp": MLP,
    "gpt": (
        *("model=gpt", "task=next_token", *TEXT, "model.layers=2", "model.width=32", "model.kv_heads=4"),
        "model.tied=true",
    ),
    "vit": ("model=vit", "batch=16", "model.patch=7", "model.layers=2", "model.width=32"),
    "llama": (
        *("model=huggingface", "model.architecture=LlamaForCausalLM", "task=next_token", *TEXT),
        *(f"+model.options.{size}" for size in (*SIZES, "num_key_value_heads=4")),
    ),
}
# Its plan is proposed.
CUSTOM = {
    name: ("model=custom", f"model.path=tests.plugin.model.split.{name}", "batch=32")
    for name in ("normed", "heads")
}
SPLIT = ("strategy=tensor_parallel",)
# Of vit's 17 tokens no two ranks have as many.
TOKENS = (*SPLIT, "strategy.sequence_parallel=true")
SMALL_TERMS = ("optimizer.lr=0.01", "optimizer.weight_decay=0.05", "optimizer.clip_norm=0.7")
SINGLE = (
    *(Case(f"single-{name}", words) for name, words in (MODELS | CUSTOM).items()),
    *(Case(f"single-{name}-clipped", (*MODELS[name], *SMALL_TERMS)) for name in ("gpt", "vit")),
    Case("single-terms", (*MLP, *TERMS)),
    Case("single-adamw", (*MLP, *ADAMW)),
)
BY_WORLD = {
    world: (
        *(
            Case(f"tensor-{name}-{world}", (*SPLIT, *words, f"workers={world}"))
            for name, words in MODELS.items()
        ),
        Case(f"tensor-gpt-clipped-{world}", (*SPLIT, *MODELS["gpt"], *SMALL_TERMS, f"workers={world}")),
        Case(f"tensor-vit-clipped-{world}", (*TOKENS, *MODELS["vit"], *SMALL_TERMS, f"workers={world}")),
    )
    for world in (2, 4)
}
TYPED = "layers.*.feed_forward.w1:colwise,layers.*.feed_forward.w2:rowwise"
PAIR = (*SPLIT, "workers=2")
TERMS_OF_TWO = (
    Case("tensor-terms-2", (*PAIR, *MLP, *TERMS, SAVED)),
    Case("tensor-terms-resumed-2", (*PAIR, *MLP, *TERMS), resumes="tensor-terms-2"),
    Case("tensor-adamw-2", (*PAIR, *MLP, *ADAMW, "microbatches=2")),
    *(Case(f"tokens-{name}-2", (*TOKENS, "workers=2", *MODELS[name])) for name in ("gpt", "llama")),
    Case("tensor-vit-typed-2", (*PAIR, *MODELS["vit"], f"strategy.plan=[{TYPED}]")),
    *(Case(f"tensor-{name}-2", (*PAIR, *words)) for name, words in CUSTOM.items()),
)
WRONG = tuple(
    Case(f"wrong-{change.replace(' ', '-')}", (*PAIR, *MLP, *TERMS), change)
    for change in ("missing all-reduce", "swapped shard", "stale weight", "own norm")
)
# Stages of parts: pairs of ranks share the layers of a stage.
STAGED = (
    *(
        "strategy=hybrid",
        "workers=4",
        "strategy.tensor=2",
        "strategy.pipeline=2",
        "strategy.partition=layers",
    ),
    *("strategy.tied=reduce", "microbatches=4"),
)
# By the reference of each.
OF_STAGES = {
    "single-gpt-clipped": Case(
        "stages-gpt",
        (*STAGED, *MODELS["gpt"], *SMALL_TERMS, "strategy.schedule=1f1b", "strategy.recompute=full", SAVED),
    ),
    "single-vit": Case("stages-vit", (*STAGED, *MODELS["vit"])),
}
ON = {
    "single-gpt-clipped": Case(
        "from-stages", (*SPLIT, *MODELS["gpt"], *SMALL_TERMS, "workers=4"), resumes="stages-gpt"
    ),
    "single-terms": Case("on-in-stages", (*STAGED, *MLP, *TERMS), resumes="../2/tensor-terms-2"),
}
WRONG_STAGES = tuple(
    Case(f"wrong-stages-{change.replace(' ', '-')}", (*STAGED, *MLP, *TERMS), change)
    for change in ("missing all-reduce", "own norm")
)
CASES = {
    1: SINGLE,
    2: (*BY_WORLD[2], *TERMS_OF_TWO, *WRONG),
    4: (*BY_WORLD[4], *OF_STAGES.values(), *ON.values(), *WRONG_STAGES),
}


def train_cases(folder: Path) -> None:
    """Starting processes costs more than training, so each world size starts once."""
    for world, cases in CASES.items():
        own = folder / str(world)
        write(own, cases)
        with ranks(MODULE, [own], world, own) as started:
            started.wait(LIMIT_SECONDS)


@pytest.fixture(scope="module")
def trained(cases: Path) -> dict[str, list[Outcome]]:
    return {case.name: read(cases / str(w) / case.name) for w, every in CASES.items() for case in every}


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        *((case.name, f"single-{case.name[7:-2]}") for cases in BY_WORLD.values() for case in cases),
        ("tensor-terms-2", "single-terms"),
        ("tensor-adamw-2", "single-adamw"),
        ("tensor-vit-typed-2", "single-vit"),
        *((f"tokens-{name}-2", f"single-{name}") for name in ("gpt", "llama")),
        *((f"tensor-{name}-2", f"single-{name}") for name in CUSTOM),
    ],
)
def test_losses_gradients_parameters_and_buffers_are_those_of_single(
    trained: dict[str, list[Outcome]], name: str, reference: str
) -> None:
    (expected,) = trained[reference]
    for outcome in trained[name]:
        assert not differences(outcome, expected), gaps(outcome, expected)
    # Scored in fp32; the first rank says what all have found.
    assert trained[name][0].evaluation == pytest.approx(expected.evaluation, rel=1e-5)


def renamed(whole: Outcome, model: Outcome) -> Outcome:
    """A tied weight may have the name of either module."""
    names = {name: name.replace("embedding", "head") for name in whole.tensors if name not in model.tensors}
    return dataclasses.replace(
        whole, tensors={names.get(name, name): value for name, value in whole.tensors.items()}
    )


def models_of(outcomes: list[Outcome]) -> list[Outcome]:
    """What each pair of stages holds together; ranks that share a stage have gathered it."""
    if outcomes[0].tensors.keys() == outcomes[-1].tensors.keys():
        return outcomes
    shared = "head.weight" if "parameters/head.weight" in outcomes[0].tensors else None
    return [joined(outcomes[part::2], shared=shared) for part in range(2)]


@pytest.mark.parametrize(("reference", "case"), OF_STAGES.items(), ids=lambda each: getattr(each, "name", ""))
def test_stages_of_parts_compute_what_single_does(
    trained: dict[str, list[Outcome]], reference: str, case: Case
) -> None:
    (expected,) = trained[reference]
    for model in models_of(trained[case.name]):
        assert not differences(model, renamed(expected, model)), gaps(model, renamed(expected, model))
    assert trained[case.name][0].evaluation == pytest.approx(expected.evaluation, rel=1e-5)


@pytest.mark.parametrize(("reference", "case"), ON.items(), ids=lambda each: getattr(each, "name", ""))
def test_a_checkpoint_goes_on_in_stages_of_parts_and_from_there(
    trained: dict[str, list[Outcome]], reference: str, case: Case
) -> None:
    (whole,) = trained[reference]
    expected = dataclasses.replace(whole, losses=whole.losses[5:])
    for model in models_of(trained[case.name]):
        assert not differences(model, renamed(expected, model)), gaps(model, renamed(expected, model))


def test_a_resumed_training_ends_as_an_undisturbed_one(trained: dict[str, list[Outcome]]) -> None:
    (whole,) = trained["single-terms"]
    expected = dataclasses.replace(whole, losses=whole.losses[5:])
    for outcome in trained["tensor-terms-resumed-2"]:
        assert not differences(outcome, expected), gaps(outcome, expected)


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.name)
def test_the_parity_check_fails_for_a(trained: dict[str, list[Outcome]], case: Case) -> None:
    for outcome in trained[case.name]:
        differing = differences(outcome, trained["single-terms"][0])
        assert {"losses", "parameters"} <= set(differing), gaps(outcome, trained["single-terms"][0])


@pytest.mark.parametrize("case", WRONG_STAGES, ids=lambda case: case.name)
def test_the_parity_check_of_stages_fails_for_a(trained: dict[str, list[Outcome]], case: Case) -> None:
    found = joined(trained[case.name][::2])
    differing = differences(found, trained["single-terms"][0])
    assert {"losses", "parameters"} <= set(differing), gaps(found, trained["single-terms"][0])


def test_ranks_sum_activations_twice_a_layer_forward_and_twice_backward(
    trained: dict[str, list[Outcome]],
) -> None:
    # Shoeybi 2019, section 3; besides, the embedding's rows, and the gradient of what the head takes. All are
    # [8, 16, 32] in float64. Of the logits [8, 16, 256] each of two ranks has a half.
    activations, logits = 8 * 16 * 32 * 8, 8 * 16 * 256 * 8
    for outcome in trained["tensor-gpt-2"]:
        assert outcome.exchanges == {
            ("tensor", "all_reduce"): (10, 10 * activations),
            ("tensor", "all_gather"): (1, logits / 2),
        }
