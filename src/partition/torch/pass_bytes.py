"""Find out what one micro-batch's passes make and free, by running them on tensors without data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from src.compat.live_tensors import LiveTensors
from src.compat.pipelining import backward_for_inputs, backward_for_weights, detachable
from src.compat.torch import storage_id, with_tensors
from src.measure.live_step import LiveBytes
from src.models.torch.unchanged import unchanged
from src.partition.live_memory import PassBytes, StageBytes
from src.partition.schedules.actions import Kind
from src.partition.torch.simulation import State, Tensors, simulate
from src.partition.torch.stage import Stage
from src.tasks.torch.outputs import model_outputs

# Returns the loss [] of a model's outputs for these targets.
Loss = Callable[[Tensors, Tensors], Tensor]


class _Passes:
    """Passes that are noted as `LiveTensors` follows them."""

    def __init__(self, live: LiveTensors) -> None:
        self._live = live
        self._spans: dict[Any, tuple[int, int]] = {}

    @contextlib.contextmanager
    def noted(self, key: Any) -> Iterator[None]:
        """Note what comes and goes within the block as the pass `key`."""
        begin = len(self._live.changes)
        yield
        self._spans[key] = begin, len(self._live.changes)

    def bytes(self) -> dict[Any, PassBytes]:
        """Return what each pass changes."""
        sizes = LiveBytes.of(self._live.parts()).sizes
        found = {}
        for key, (begin, end) in self._spans.items():
            rows = np.concatenate([np.zeros((1, sizes.shape[1])), sizes[begin:end] - sizes[begin - 1]])
            # Copies, for rows are many.
            found[key] = PassBytes(most=rows[rows.sum(axis=1).argmax()].copy(), after=rows[-1].copy())
        return found


def whole_model(
    model: nn.Module,
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss: Loss,
    *,
    precision: str = "fp32",
) -> StageBytes:
    """Return what passes of a whole model make and free; it stays as it is.

    Args:
        model: the model, on its device.
        inputs: those of one micro-batch [samples, ...].
        targets: those of the micro-batch.
        loss: of the outputs that the task takes.
        precision: that of the training, `fp32` or `bf16`.
    """
    return _traced(model, inputs, targets, loss, keeps_output=False, precision=precision)


def of_stage(
    stage: Stage,
    received: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss: Loss | None,
    *,
    again: bool = False,
    splits: bool = False,
    first: bool = False,
    keeps_output: bool = True,
    precision: str = "fp32",
) -> StageBytes:
    """Return what passes of a stage make and free, as `TimedStage` runs them; it stays as it is.

    Args:
        stage: the stage, on its device.
        received: the inputs or boundary tensors of one micro-batch; their values aren't read unless a layer
            does so.
        targets: those of the micro-batch.
        loss: of the model's outputs, `None` but in the last stage.
        again: whether the forward pass is computed again for the backward pass.
        splits: whether backward passes for inputs and for weights are apart.
        first: whether this is the model's first stage.
        keeps_output: whether the model's outputs are kept until the backward pass.
        precision: that of the training, `fp32` or `bf16`.
    """
    return _traced(
        stage,
        received,
        targets,
        loss,
        again=again,
        splits=splits,
        sends_back=not first,
        keeps_output=keeps_output,
        precision=precision,
    )


def _traced(
    module: nn.Module,
    received: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss: Callable[[Any, Tensors], Tensor] | None,
    *,
    again: bool = False,
    splits: bool = False,
    sends_back: bool = False,
    keeps_output: bool = True,
    precision: str,
) -> StageBytes:
    held = {parameter: parameter.grad for parameter in module.parameters()}

    def run(state: State, given: Tensors) -> StageBytes:
        examples, expected = given[: len(received)], given[len(received) :]
        weights = [each for each in state.values() if each.requires_grad]
        # A layer that holds its weights in a list of its own, as an LSTM, computes with the module's.
        leaves = [*weights, *(each for each in module.parameters() if each.requires_grad)]
        trained = set[str]()
        names = ("output", "sent_back", "kept", "kept_back", "received", "received_back")
        sizes = dict.fromkeys(names, 0.0)
        with with_tensors(module, state), LiveTensors() as live:
            live.name("weights", state.values())
            live.name("other", expected)
            passes = _Passes(live)
            for apart, first in product((False, True) if splits else (False,), (True, False)):
                if first:
                    _forget(leaves)
                inputs = tuple(torch.empty_like(each).requires_grad_(each.requires_grad) for each in examples)
                live.name("exchange", inputs)
                if again and first:
                    # Which buffers it moves a stage finds out in the first pass.
                    _forward(module, inputs, again)
                with passes.noted((Kind.FORWARD, again, first)):
                    results = _forward(module, inputs, again)
                    if splits:
                        results = tuple(map(detachable, model_outputs(results)))
                    if loss is not None:
                        roots: Tensors = (loss(results, expected),)
                        sizes["output"] = sizes["kept"] = _nbytes(model_outputs(results))
                        if not keeps_output:
                            results = ()
                    else:
                        results = tuple(results)
                        roots = tuple(each for each in results if each.requires_grad)
                        sizes["output"], sizes["kept"] = _nbytes(results), _nbytes(results, inputs)
                gradients = None if loss is not None else [torch.empty_like(each) for each in roots]
                live.name("exchange", gradients or [])
                wanted = [each for each in inputs if each.requires_grad]
                sizes["sent_back"] = _nbytes(wanted) if sends_back else 0.0
                sizes["received_back"] = _nbytes(gradients or [])
                sizes["received"] = (_nbytes(inputs) if sends_back else 0.0) + sizes["received_back"]
                with torch.autocast(inputs[0].device.type, enabled=False):
                    groups, kind = None, Kind.WEIGHT_BACKWARD if apart else Kind.BACKWARD
                    if apart:
                        with passes.noted((Kind.INPUT_BACKWARD, again, first)):
                            if sends_back:
                                groups = backward_for_inputs(roots, gradients, inputs, weights)
                                sizes["kept_back"] = _sent_back(live, wanted, gradients)
                    with passes.noted((kind, again, first)):
                        if groups is None:
                            torch.autograd.backward(roots, gradients)
                        else:
                            backward_for_weights(weights, groups)
                        made = [each.grad for each in leaves if each.grad is not None]
                        live.name("gradients", made)
                        if not apart and sends_back:
                            sizes["kept_back"] = _sent_back(live, wanted, gradients)
                        _forget(wanted)
                        del roots, results, groups
                if any(each.layout is not torch.strided for each in made):
                    raise ValueError("gradients that are sparse")
                named = [*state.items(), *module.named_parameters()]
                trained |= {name for name, each in named if each.grad is not None}
                del inputs, gradients, wanted, made
        return StageBytes(passes=passes.bytes(), trained=frozenset(trained), **sizes)

    try:
        # A model may count its passes, or keep something of them, in Python.
        with unchanged(module, weights=False):
            return simulate(module, [*received, *targets], run, precision=precision)
    finally:
        for parameter, gradient in held.items():
            parameter.grad = gradient


def _forward(module: nn.Module, inputs: Tensors, again: bool) -> Any:
    if again:
        assert isinstance(module, Stage), "whole models are computed once"
        return module.computed_again(module, inputs)
    return module(*inputs)


def _forget(tensors: Sequence[Tensor]) -> None:
    """Free these tensors' gradients."""
    for each in tensors:
        each.grad = None


def _nbytes(tensors: Sequence[Tensor], besides: Sequence[Tensor] = ()) -> float:
    """Return the bytes of tensors, but of those in the memory of others."""
    others = {storage_id(each.untyped_storage()) for each in besides}
    return float(sum(each.nbytes for each in tensors if storage_id(each.untyped_storage()) not in others))


def _sent_back(live: LiveTensors, tensors: Sequence[Tensor], given: Sequence[Tensor] | None) -> float:
    """Make tensors' gradients as they are sent, and free them; return the bytes of those not `given`."""
    sent = [each.grad.contiguous() for each in tensors if each.grad is not None]
    live.name("exchange", sent)
    _forget(tensors)
    return _nbytes(sent, given or ())


def update_bytes(
    make: Callable[[list[Tensor]], torch.optim.Optimizer],
    weights: Sequence[Tensor],
    *,
    foreach: bool | None = None,
) -> tuple[float, float]:
    """Return the bytes that an optimizer keeps of some weights, and those its update makes for a moment.

    Both are those of weights without data.

    Args:
        make: makes the optimizer of some weights.
        weights: those that are trained.
        foreach: whether it takes all of them at once; by default as torch does by their device.
    """
    blank: list[Tensor] = [torch.empty_like(each, device="meta", requires_grad=True) for each in weights]
    if not blank:
        return 0.0, 0.0
    optimizer = make(blank)
    for group in optimizer.param_groups:
        # torch's own choice, which it makes by the weights' device.
        group["foreach"] = weights[0].device.type == "cuda" if foreach is None else foreach
    for each in blank:
        each.grad = torch.empty_like(each)
    # Its state is made in the first step.
    optimizer.step()
    state = [value for own in optimizer.state.values() for value in own.values() if torch.is_tensor(value)]
    with LiveTensors() as live:
        for part, tensors in (("weights", blank), ("gradients", [each.grad for each in blank])):
            live.name(part, [each for each in tensors if each is not None])
        live.name("optimizer", state)
        passes = _Passes(live)
        with passes.noted("update"):
            optimizer.step()
    return float(sum(each.nbytes for each in state)), float(passes.bytes()["update"].most.sum())
