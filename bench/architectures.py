"""Cut models that nobody here wrote in two, and print a table of what came of it.

python -m bench.architectures [--jobs N] [--only NAME]

Each model of torchvision, timm and Hugging Face's transformers, with random weights, is traced, compared with
itself in stages as before a run, cut in two where the slower stage takes least, and trained for three steps
in float64, uncut and in the two stages. The table says where it is cut, what part of the time the cheaper
stage has, and how far losses, weights and buffers differ after the steps; or with which line it is refused.
That is done without dropout and stochastic depth, and then with them, by one generator that is seeded before
each step: within one process stages draw in turn what the uncut model draws. (Ranks have streams of their
own.) timm and transformers are needed, besides what the project needs; a model of a library that isn't there
is `not tried`. A model has a process of its own.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from bench.runs import OUT

# After three steps in float64: relative to a value, or to 1 where that is less.
BOUND = 1e-9
STEPS, SAMPLES, CLASSES, RATE = 3, 4, 10, 1e-3
# A stage of less than this part of the time isn't worth a device.
LEAST_SHARE = 0.25
SECONDS = 300.0
SMALL_TEXT = {"vocab_size": 100, "use_cache": False}
GPT2 = {"n_embd": 32, "n_layer": 4, "n_head": 4}
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
# Hugging Face's dropouts, whatever their names.
OFF = {"p", "drop_prob", "drop_path", "drop_path_rate"}


@dataclass(frozen=True)
class Case:
    """A model to be cut.

    Attributes:
        library: `torchvision`, `timm` or `transformers`.
        name: of the model, within torchvision.models, of timm or of the class.
        options: what it is built with.
        side: pixels of its square images; 0 where it takes token numbers.
        tied: what becomes of a weight that several layers share, as `strategy.tied` says it.
        draws: further options, by which it draws at random where by default it doesn't.
    """

    library: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    side: int = 64
    tied: str = "together"
    draws: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Return the library and the name."""
        return f"{self.library} `{self.name}`"


def _cases() -> Iterator[Case]:
    plain = (
        "resnet34 resnext50_32x4d wide_resnet50_2 densenet121 mobilenet_v3_small shufflenet_v2_x1_0 "
        "squeezenet1_1 mnasnet0_5 alexnet regnet_y_400mf vgg11_bn efficientnet_b0 efficientnet_v2_s "
        "convnext_tiny swin_t swin_v2_t"
    )
    drops: dict[str, dict[str, Any]] = {"densenet121": {"drop_rate": 0.1}}
    yield from (Case("torchvision", name, draws=drops.get(name, {})) for name in plain.split())
    yield Case("torchvision", "googlenet", {"aux_logits": False, "init_weights": False})
    yield Case("torchvision", "googlenet", {"init_weights": False, "aux_logits": True})
    yield Case("torchvision", "inception_v3", {"init_weights": False}, 299)
    yield Case(
        "torchvision", "vit_b_16", {"image_size": 64}, draws={"dropout": 0.1, "attention_dropout": 0.1}
    )
    yield Case("torchvision", "maxvit_t", {"input_size": (224, 224)}, 224)
    for name in ("fcn_resnet50", "deeplabv3_mobilenet_v3_large"):
        yield Case("torchvision", f"segmentation.{name}", {"weights_backbone": None})
    head, path = {"drop_rate": 0.1}, {"drop_path_rate": 0.1}
    both, inner = {**head, **path}, {"proj_drop_rate": 0.1, "attn_drop_rate": 0.1}
    yield from (
        Case("timm", name, side=side, draws=draws)
        for name, side, draws in (
            ("resnet18", 64, both), ("mixer_s16_224", 224, {**both, "proj_drop_rate": 0.1}),
            ("convnextv2_atto", 64, both), ("regnety_002", 64, both),
            ("deit_tiny_patch16_224", 224, {**both, **inner}),
            ("vit_tiny_patch16_224", 224, {**both, **inner}),
            ("mobilenetv4_conv_small", 64, both), ("mobilevit_xxs", 256, both), ("efficientvit_b0", 64, head),
            ("swin_tiny_patch4_window7_224", 224, {**both, **inner}),
            ("eva02_tiny_patch14_224", 224, {**both, **inner}),
        )
    )  # fmt: skip
    yield Case("timm", "resnet18", {"num_classes": 7}, draws=both)
    hidden, attention = {"hidden_dropout_prob": 0.1}, {"attention_dropout": 0.1}
    both = {**hidden, "attention_probs_dropout_prob": 0.1}
    made: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {
        "GPT2LMHeadModel": ({**SMALL_TEXT, **GPT2}, 0, {}),
        "GPT2ForSequenceClassification": ({**SMALL_TEXT, **GPT2, "pad_token_id": 0}, 0, {}),
        "LlamaForCausalLM": ({**SMALL_TEXT, **TINY}, 0, attention),
        "MistralForCausalLM": ({**SMALL_TEXT, **TINY, "num_key_value_heads": 2}, 0, attention),
        "Qwen2ForCausalLM": ({**SMALL_TEXT, **TINY, "num_key_value_heads": 2}, 0, attention),
        "BertForSequenceClassification": ({**SMALL_TEXT, **TINY}, 0, {}),
        "RobertaForSequenceClassification": ({**SMALL_TEXT, **TINY}, 0, {}),
        "DistilBertForSequenceClassification": (
            {"vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
            0,
            {},
        ),
        "T5EncoderModel": ({"vocab_size": 100, "d_model": 32, "num_layers": 4, "d_ff": 64}, 0, {}),
        "T5ForConditionalGeneration": (
            {**SMALL_TEXT, "d_model": 32, "num_layers": 4, "d_ff": 64, "tie_word_embeddings": False},
            0,
            {},
        ),
        "ViTForImageClassification": ({**TINY, "image_size": 64, "patch_size": 16}, 64, both),
        "Dinov2ForImageClassification": (
            {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 64},
            64,
            {**both, **path},
        ),
        "ConvNextForImageClassification": (
            {"depths": [1, 1, 2, 1], "hidden_sizes": [8, 16, 32, 64]},
            64,
            path,
        ),
        "SwinForImageClassification": (
            {"image_size": 224, "embed_dim": 24, "depths": [1, 1, 2, 1]},
            224,
            both,
        ),
        "CLIPVisionModel": ({**TINY, "image_size": 64, "patch_size": 16}, 64, attention),
        "ResNetForImageClassification": (
            {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 16, 32, 64]},
            64,
            {},
        ),
    }
    for name, (options, side, draws) in made.items():
        # The decoder's embedding is the encoder's.
        tied = "reduce" if name.endswith("ForConditionalGeneration") else "together"
        yield Case("transformers", name, options, side, tied=tied, draws=draws)
    yield Case("transformers", "GPT2LMHeadModel", made["GPT2LMHeadModel"][0], 0, tied="reduce")


CASES = tuple(_cases())


def build(case: Case, *, draws: bool = False) -> tuple[Any, tuple[Any, ...]]:
    """Return a case's model, which trains, with random weights, and its inputs.

    With `draws` its dropout and stochastic depth are on.
    """
    import torch

    torch.manual_seed(0)
    options = {"num_classes": CLASSES, **case.options, **(case.draws if draws else {})}
    if case.library == "torchvision":
        import torchvision

        make: Any = torchvision.models
        for part in case.name.split("."):
            make = getattr(make, part)
        model = make(**options)
    elif case.library == "timm":
        import timm

        model = timm.create_model(case.name, **options)
    else:
        import transformers

        del options["num_classes"]
        kind = getattr(transformers, case.name)
        model = kind(kind.config_class(**options))
    # Some make tables in a type of their own.
    model.double().train()
    for module in model.modules():
        for key, value in vars(module).items():
            if not draws and isinstance(value, float) and (key in OFF or "dropout" in key):
                setattr(module, key, 0.0)
    if case.side:
        return model, (torch.randn(SAMPLES, 3, case.side, case.side),)
    tokens = torch.randint(1, 100, (SAMPLES, 16))
    if case.name.endswith("ForConditionalGeneration"):
        return model, (tokens, torch.ones_like(tokens), tokens.flip(0))
    return model, (tokens,)


def loss_of(outputs: tuple[Any, ...]) -> Any:
    """Return a loss [] of all outputs that are real numbers."""
    return sum(output.square().mean() for output in outputs if output.is_floating_point())


def trained(model: Any, inputs: tuple[Any, ...], forward: Callable[..., Any]) -> list[Any]:
    """Take three steps of plain gradient descent; return the losses, the weights and the buffers after them.

    `forward` takes the inputs, and returns the loss after the backward pass.
    """
    import torch

    losses = []
    for step in range(STEPS):
        model.zero_grad()
        torch.manual_seed(step)
        losses.append(forward(*inputs).detach())
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= RATE * parameter.grad
    return [*losses, *model.parameters(), *model.buffers()]


def gap_of(model: Any, graph: Any, inputs: tuple[Any, ...], boundary: int) -> float:
    """Train a model uncut and in two stages; return the largest difference, relative to a value or to 1."""
    import torch

    from src.partition.torch.simulation import tensors
    from src.partition.torch.stage import Stage
    from src.tasks.torch.outputs import model_outputs

    values, count = graph.values(inputs), len(graph.operations)
    first, second = Stage.of(graph, 0, boundary, values), Stage.of(graph, boundary, count, values)

    def whole(*given: Any) -> Any:
        loss = loss_of(model_outputs(model(*given)))
        loss.backward()
        return loss

    def staged(*given: Any) -> Any:
        sent = tensors(first(*given))
        received = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in sent]
        loss = loss_of(model_outputs(second(*received)))
        loss.backward()
        pairs = [(s, r.grad) for s, r in zip(sent, received, strict=True) if r.grad is not None]
        torch.autograd.backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])
        return loss

    start = copy.deepcopy(model.state_dict())
    uncut = [tensor.detach().clone() for tensor in trained(model, inputs, whole)]
    model.load_state_dict(start)
    cut = trained(model, inputs, staged)
    return max(
        float(((a - b).abs() / a.abs().clamp(min=1)).max().detach())
        for a, b in zip(uncut, cut, strict=True)
        if a.numel() and a.is_floating_point()
    )


def gap_of_draws(case: Case, first: str, share: float) -> float | None:
    """Return the gap of a case's model that draws at random, `None` where it draws nothing.

    It is cut before the operation `first`, or, where it has none by that name, after this share of all.
    """
    import torch

    from src.partition.torch.graph import operations

    model, inputs = build(case, draws=True)
    before = torch.get_rng_state()
    with torch.no_grad():
        model(*(tensor[:2] for tensor in inputs))
    if torch.equal(before, torch.get_rng_state()):
        return None
    graph = operations(model, inputs, tied=case.tied)
    names = graph.names
    boundary = names.index(first, 1) if first in names[1:] else max(1, round(share * len(names)))
    return gap_of(model, graph, inputs, boundary)


def cut_in_two(case: Case) -> dict[str, Any]:
    """Cut a case's model and train it both ways; return what the table says of it.

    Raises:
        ConfigError: with the line by which the model is refused.
    """
    import torch

    from src.config import ConfigError
    from src.partition import plan
    from src.partition.model_profile import Link
    from src.partition.torch import comparison, cost, export
    from src.partition.torch.graph import operations
    from src.runtime.torch.pipeline.cut_check import few
    from src.tasks.torch.outputs import model_outputs

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    model, inputs = build(case)
    export.load()
    # The process has one thread, whose time doesn't depend on what else the machine does.
    started = time.process_time()
    graph = operations(model, inputs, tied=case.tied)
    traced = time.process_time() - started
    compared = tuple(tensor[: few(inputs)] for tensor in inputs)
    try:
        comparison.check(model, graph, compared, model_outputs, loss_of, bound=BOUND)
    except comparison.CutDiffersError as error:
        raise ConfigError(f"the model can't be cut as it is: {error}") from error
    seconds = time.process_time() - started
    demands = plan.Demands("time", 1, False, 2, [1, 1], [1.0, 1.0], None)
    profile = graph.profile(graph.values(inputs))
    made = plan.make(profile, cost.costs(graph, inputs), Link(0.0, 0.0), demands)
    (boundary,), count = made.boundaries, len(graph.operations)
    gap = gap_of(model, graph, inputs, boundary)
    del model, graph
    times = [stage.seconds for stage in made.stages]
    return {
        "operations": count,
        "at": made.stages[1].first,
        "share": min(times) / sum(times),
        "gap": gap,
        "drawn": gap_of_draws(case, made.stages[1].first, boundary / count),
        "traced": traced,
        "seconds": seconds,
    }


def answer(number: int) -> dict[str, Any]:
    """Return what came of a case, which is done in a process of its own."""
    command = [sys.executable, "-m", "bench.architectures", "--case", str(number)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"failed": f"takes more than {SECONDS:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    return {"failed": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}


def one(case: Case) -> dict[str, Any]:
    """Return what came of a case in this process: figures, `refused` with the reason, or `lacking`."""
    from src.config import ConfigError

    try:
        return cut_in_two(case)
    except ConfigError as error:
        return {"refused": " ".join(str(error).split())}
    except ModuleNotFoundError as error:
        if error.name != case.library:
            raise
        return {"lacking": case.library}


def row(case: Case, found: dict[str, Any], notes: list[str]) -> str:
    """Return the table's row of a case; a refusal is numbered among `notes`, where it is added."""
    shown: dict[str, Any] = {
        key: case.options[key] for key in ("aux_logits", "num_classes") if key in case.options
    }
    shown |= {"strategy.tied": case.tied} if case.tied != "together" else {}
    options = ", ".join(f"{key}={value}" for key, value in shown.items())
    title = f"{case.title}{f' ({options})' if options else ''}"
    if "operations" in found:
        gaps = [_shown(found["gap"]), "-" if found["drawn"] is None else _shown(found["drawn"])]
        figures = [str(found["operations"]), f"`{found['at']}`", f"{found['share']:.0%}", *gaps]
        return f"| {' | '.join([title, *figures, str(round(found['seconds'])) + ' s'])} |"
    if "lacking" in found:
        return f"| {title} | not tried: {found['lacking']} isn't installed | | | | | |"
    if "failed" in found:
        return f"| {title} | **{found['failed']}** | | | | | |"
    if found["refused"] not in notes:
        notes.append(found["refused"])
    return f"| {title} | refused [{notes.index(found['refused']) + 1}] | | | | | |"


def _shown(gap: float) -> str:
    return f"{gap:.0e}" if gap <= BOUND else f"**{gap:.0e}**"


def main() -> int:
    """Cut every model and print the table; return 1 if one failed, or computes something else in stages."""
    parser = argparse.ArgumentParser(prog="python -m bench.architectures", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="models that are cut at once")
    parser.add_argument("--only", default="", help="a part of the names of some of them")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(json.dumps(one(CASES[arguments.case])))
        return 0
    chosen = [number for number, case in enumerate(CASES) if arguments.only in case.title]
    notes: list[str] = []
    titles = "model, operations, the second stage begins with, cheaper stage, gap, gap with dropout, takes"
    lines = [f"| {' | '.join(titles.split(', '))} |", "| --- | ---: | --- |" + " ---: |" * 4]
    everything = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for number, found in zip(chosen, pool.map(answer, chosen), strict=True):
            everything.append(found)
            lines.append(row(CASES[number], found, notes))
            print(lines[-1], file=sys.stderr, flush=True)
    numbered = [f"{number}. {note}" for number, note in enumerate(notes, start=1)]
    cut = [found for found in everything if "operations" in found]
    worth = sum(found["share"] >= LEAST_SHARE for found in cut)
    tracing, both = (max((found[key] for found in cut), default=0.0) for key in ("traced", "seconds"))
    summary = (
        f"Of {len(everything)} {len(cut)} are cut, {worth} with a quarter of the time or more in "
        f"each stage; tracing took {tracing:.0f} s of a core at most, with the comparison {both:.0f} s."
    )
    text = "\n".join([*lines, "", *numbered, "", summary]) + "\n"
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "architectures.md").write_text(text)
    print(text, end="")
    return 1 if "**" in text else 0


if __name__ == "__main__":
    sys.exit(main())
