"""Train one step of a few samples by a cut model and by the uncut one, and compare what they compute.

A graph that was traced from a model may lack what the tracer didn't see: a backward pass of the user's own, a
hook, a buffer that `forward` writes. Here the model's own forward and backward pass say what is right.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from src.compat.pipelining import backward_in_parts, detachable
from src.models.torch.unchanged import evaluating, unchanged
from src.partition.torch import kept
from src.partition.torch.evaluation import evaluation
from src.partition.torch.graph import Graph
from src.partition.torch.own_functions import TensorHooks, line_of, own_functions, python_effects
from src.partition.torch.simulation import Inputs, Tensors, tensors
from src.partition.torch.stage import Stage
from src.partition.torch.trace import traced
from src.partition.torch.traced import Select
from src.partition.torch.user_lines import Line
from src.run.status import Status, of_error
from src.tasks.torch.outputs import autocast, model_outputs

# The largest relative norm of a difference, by precision. In bf16 a last digit is 4e-3.
BOUNDS = {"fp32": 1e-5, "bf16": 3e-2}
# And of a model whose numbers are float64, in which rounding is no excuse.
SHARP = 1e-9
# A gradient below this share of the whole model's is rounding for the most part (that of a bias before
# BatchNorm is 0 but for that), and is compared with the share instead.
SMALL = 1e-3
SEED = 0
# A model of fewer operations is cut between any two of them.
STAGES = 64

Loss = Callable[[Tensors], Tensor]


class CutDiffersError(Exception):
    """A cut model that computes something else than the uncut one; the message says what differs first."""


@dataclass(frozen=True)
class Step:
    """The results of one step of a model, whole or cut.

    Attributes:
        outputs: in training, of the samples.
        again: the outputs of a second step with the same weights, which depend on what the first one left.
        evaluated: the outputs in evaluation.
        gradients: by parameter name, `None` where there is none.
        buffers: by name, after the step.
        own: what no graph shows (autograd functions, hooks and the like), each with the number of its uses.
        kept: what modules have kept of the step beside weights and buffers, by name.
    """

    outputs: Tensors
    again: Tensors
    evaluated: Tensors
    gradients: Mapping[str, Tensor | None]
    buffers: Mapping[str, Tensor]
    own: Mapping[str, int]
    kept: Mapping[str, Any] = field(default_factory=dict)


def check(
    model: nn.Module,
    graph: Graph,
    inputs: Inputs,
    select: Select,
    loss: Loss,
    *,
    precision: str = "fp32",
    bound: float | None = None,
    splits: bool = False,
    again: bool = False,
    at_once: bool = False,
) -> None:
    """Compare a step of the uncut model with one through many stages, so that nearly every boundary is one.

    Both leave the model as it was.

    Args:
        model: the uncut model, which trains in the modes that its modules have.
        graph: the operations of the model, whose weights these are.
        inputs: those of the samples [samples, ...].
        select: picks the outputs among what the model returns.
        loss: returns the loss [] of the outputs [samples, ...].
        precision: `fp32` or `bf16`.
        bound: the largest relative norm of a difference; by default the precision's.
        splits: whether stages have backward passes for inputs and for weights apart.
        again: whether stages compute their forward passes again for their backward passes.
        at_once: whether a stage may run a forward pass before an earlier one's backward pass.

    Raises:
        CutDiffersError: with the first thing that differs: an output, a parameter's gradient, a buffer, or an
            autograd function or hook of the user's own that the cut model doesn't run.
    """
    given, bound = tensors(inputs), bound or BOUNDS[precision]
    uncut = whole_step(model, given, select, loss, precision=precision)
    tables = kept.constants(model, given, uncut.kept) if uncut.kept else set()
    if tables:
        uncut = whole_step(model, given, select, loss, precision=precision, tables=tables)
    step = partial(staged_step, model, graph, given, select, loss, precision=precision)
    steps = [partial(step, splits=splits, at_once=at_once)]
    if again:
        # As one stage, all of which is computed again, what its layers do besides included.
        steps.append(partial(step, ends=(0, len(graph.operations)), again=True))
    for staged in steps:
        try:
            cut = staged()
        except (RuntimeError, AssertionError, TypeError) as error:
            if of_error(error) is Status.OUT_OF_MEMORY:
                raise
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise CutDiffersError(f"it fails in stages ({reason})") from error
        if (difference := first_difference(uncut, cut, bound)) is not None:
            break
    else:
        return
    if (own := _left_out(uncut, cut)) is not None:
        raise CutDiffersError(difference + _at(line_of(own, model, given)))
    if changing := sorted(uncut.kept.keys() - tables):
        line = kept.line_of(changing[0], model, given)
        raise CutDiffersError(f"{difference}, and stages keep no {changing[0]} of a step{_at(line)}")
    repeated = whole_step(model, given, select, loss, precision=precision, tables=tables)
    if (own := first_difference(uncut, repeated, bound)) is not None:
        raise CutDiffersError(f"the model itself computes something else each time ({own})")
    raise CutDiffersError(difference)


def _at(line: Line | None) -> str:
    return "" if line is None else f", as is done at {line}"


def whole_step(
    model: nn.Module,
    inputs: Tensors,
    select: Select,
    loss: Loss,
    *,
    precision: str,
    tables: Container[str] = (),
) -> Step:
    """Return what the uncut model computes in a step, and leave the model as it was.

    What modules keep of the step, but for `tables`, is random before the second one: whoever reads it there
    then computes something else than stages, which don't keep it.
    """
    with unchanged(model):
        before = kept.held(model)
        torch.manual_seed(SEED)
        model.zero_grad()
        with torch.enable_grad(), autocast(precision, inputs[0].device):
            with TensorHooks() as hooks, python_effects(model) as effects:
                outputs = select(model(*inputs))
            total = loss(outputs)
        led = own_functions(outputs) + hooks.count
        total.backward()
        gradients, buffers = _gradients(model), _buffers(model)
        left = kept.new(model, before)
        values = {each.name: each.value for each in left}
        for each in left:
            if each.name not in tables:
                each.stir()
        torch.manual_seed(SEED)
        with torch.no_grad():
            with autocast(precision, inputs[0].device), python_effects(model, deep=True) as moved:
                again = select(model(*inputs))
            model.eval()
            evaluated = select(model(*inputs))
    own = led + (effects | moved)
    return Step(_detached(outputs), again, evaluated, gradients, buffers, own, values)


def staged_step(
    model: nn.Module,
    graph: Graph,
    inputs: Tensors,
    select: Select,
    loss: Loss,
    *,
    precision: str,
    splits: bool = False,
    again: bool = False,
    at_once: bool = False,
    ends: Sequence[int] | None = None,
) -> Step:
    """Return what `graph` computes in a step, cut into many stages; leave the model as it was.

    Where it `splits`, all stages but the first have backward passes for inputs and for weights apart; with
    `again` forward passes are computed twice; `at_once` a second one comes before the first backward pass.
    They are cut at `ends`, by default into `STAGES`.
    """
    if ends is None:
        count = min(STAGES, len(graph.operations))
        ends = [number * len(graph.operations) // count for number in range(count + 1)]
    values = graph.values(inputs, precision=precision)
    with evaluating(model):
        evaluated_by = evaluation(graph, ends[1:-1], traced(model, inputs, select))
    with unchanged(nn.ModuleList([model, graph.module])):
        stages = [Stage.of(graph, start, stop, values) for start, stop in itertools.pairwise(ends)]
        torch.manual_seed(SEED)
        model.zero_grad()
        with TensorHooks() as hooks, python_effects(model) as effects:
            passed = list(_forward(stages, inputs, precision, splits=splits, again=again))
        outputs = model_outputs(passed[-1][1])
        with torch.enable_grad(), autocast(precision, inputs[0].device):
            total = loss(outputs)
        led = sum((own_functions(sent) for _, sent in passed), hooks.count)
        moved: Counter[str] = Counter()
        buffers = _buffers(model)

        def second_step() -> Tensors:
            torch.manual_seed(SEED)
            with torch.set_grad_enabled(at_once), python_effects(model, deep=True) as found:
                results = _detached(model_outputs([*_forward(stages, inputs, precision)][-1][1]))
            moved.update(found)
            return results

        second = second_step() if at_once else None
        _backward(passed, total, [list(stage.parameters()) for stage in stages] if splits else None)
        gradients = _gradients(model)
        second = second_step() if second is None else second
        values = evaluated_by.values(inputs)
        evaluating_stages = [evaluated_by.stage(number, values).eval() for number in range(len(stages))]
        with torch.no_grad():
            evaluated = model_outputs([*_forward(evaluating_stages, inputs, "fp32")][-1][1])
    own = led + (effects | moved)
    return Step(_detached(outputs), second, evaluated, gradients, buffers, own)


def _forward(
    stages: Sequence[Stage], inputs: Tensors, precision: str, *, splits: bool = False, again: bool = False
) -> Iterator[tuple[Tensors, Tensors]]:
    """Pass inputs through stages; return what each has received and sent, the last one its outputs."""
    received = inputs
    for stage in stages:
        with autocast(precision, inputs[0].device):
            sent = tensors(stage.computed_again(stage, received) if again else stage(*received))
            if splits:
                sent = tuple(map(detachable, sent))
        yield received, sent
        received = tuple(tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in sent)


def _backward(
    passed: Sequence[tuple[Tensors, Tensors]],
    total: Tensor,
    parameters: Sequence[Sequence[nn.Parameter]] | None = None,
) -> None:
    """Pass the gradient of the loss `total` back through what stages have received and sent.

    Where the stages' `parameters` are given, each stage but the first does so in two parts.
    """
    if parameters is None or len(passed) == 1:
        total.backward()
    else:
        backward_in_parts([total], None, passed[-1][0], parameters[-1])
    for place in reversed(range(len(passed) - 1)):
        (given, sent), (received, _) = passed[place : place + 2]
        pairs = [
            # Where a stage has no gradient to send back torch's stages send zeros.
            (s, torch.zeros_like(s) if r.grad is None else r.grad)
            for s, r in zip(sent, received, strict=True)
            if s.requires_grad
        ]
        if not pairs:
            continue
        roots, gradients = [tensor for tensor, _ in pairs], [gradient for _, gradient in pairs]
        if parameters is None or place == 0:
            torch.autograd.backward(roots, gradients)
        else:
            backward_in_parts(roots, gradients, given, parameters[place])


def first_difference(uncut: Step, cut: Step, bound: float) -> str | None:
    """Return what differs first by more than the relative norm `bound`, as a sentence's part, else `None`."""
    if (own := _left_out(uncut, cut)) is not None:
        return f"{own} isn't run in stages"
    for what, one, other in (
        ("output", uncut.outputs, cut.outputs),
        ("output of a second step", uncut.again, cut.again),
        ("output in evaluation", uncut.evaluated, cut.evaluated),
    ):
        if len(one) != len(other):
            return f"{len(one)} outputs, in stages {len(other)}"
        for number, pair in enumerate(zip(one, other, strict=True)):
            if difference := _difference(*pair, bound):
                return f"the {what}{f' {number}' if len(one) > 1 else ''} {difference}"
    present = [each.double().square().sum() for each in uncut.gradients.values() if each is not None]
    small = SMALL * float(sum(present)) ** 0.5
    for name, gradient in uncut.gradients.items():
        if difference := _difference(gradient, cut.gradients[name], bound, small):
            return f"the gradient of {name} {difference}"
    for name, buffer in uncut.buffers.items():
        if difference := _difference(buffer, cut.buffers.get(name), bound, _spread(name, uncut.buffers)):
            return f"the buffer {name} {difference}"
    return None


def _left_out(uncut: Step, cut: Step) -> str | None:
    """Return the first of what no graph shows that stages run another number of times than the model."""
    return next((name for name, count in uncut.own.items() if cut.own.get(name, 0) != count), None)


def _spread(name: str, buffers: Mapping[str, Tensor]) -> float:
    """Return the norm below which a running mean is rounding for the most part; 0 of other buffers.

    That of what a layer without bias makes of normalised features is 0 but for that.
    """
    variance = buffers.get(name.removesuffix("mean") + "var") if name.endswith("running_mean") else None
    return 0.0 if variance is None else SMALL * float(variance.double().sum()) ** 0.5


def _difference(one: Tensor | None, other: Tensor | None, bound: float, least: float = 0.0) -> str | None:
    """Return how a tensor of the cut model differs from that of the uncut one, `None` if it doesn't."""
    if one is None or other is None:
        return None if one is other else f"is there only {'in stages' if one is None else 'without them'}"
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"is {_form(other)} in stages, and {_form(one)} without them"
    if one.is_sparse or other.is_sparse:
        one, other = one.to_dense(), other.to_dense()
    if torch.equal(one, other):
        return None
    wide = torch.complex128 if one.is_complex() else torch.float64
    expected, found = one.to(wide), other.to(wide)
    same = (expected == found) | (expected.isnan() & found.isnan())
    gap = float(torch.where(same, 0, expected - found).norm())
    norm = max(float(expected.norm()), least)
    # A difference that is no number is one.
    if gap <= bound * norm:
        return None
    return f"differs by {gap / norm if norm else gap:.1e} of its norm"


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {[*tensor.shape]}"


def _gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.detach().clone() for name, buffer in model.named_buffers()}


def _detached(outputs: Tensors) -> Tensors:
    return tuple(tensor.detach() for tensor in outputs)
