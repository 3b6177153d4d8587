"""Wrap private parts of `torch.distributed.pipelining`: schedules' waits, stages' greetings, a schedule."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, _backward, schedules, stage
from torch.distributed.pipelining._backward import (
    reverse_closure,
    stage_backward_input,
    stage_backward_weight,
)
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from src.compat.torch import autograd_node, reached_nodes

_wait_for: Callable[[list[dist.Work]], None] = schedules._wait_batch_p2p

# Whether stages know of each tensor whether it has a gradient; torch 2.11's take that of all, and get zeros.
KNOWS_GRADIENTS = hasattr(PipelineStage, "_warmup_forward_vote")


def _has_gradient(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def on_waiting(notice: Callable[[], None]) -> None:
    """Have torch's schedules call `notice` before they wait for transfers in either direction.

    A stage also waits for sends that aren't received yet, and only the schedules' own waiting knows of these.
    """

    def wait(works: list[dist.Work]) -> None:
        if works:
            notice()
        _wait_for(works)

    setattr(schedules, "_wait_batch_p2p", wait)  # noqa: B010


def detachable(tensor: Tensor) -> Tensor:
    """Return a stage's output as torch can detach it in place between the parts of its backward pass.

    A view can't be detached so, nor what an operation keeps of its own result, as a sigmoid does.
    """
    return tensor.clone()


class Apart(NamedTuple):
    """The outputs of a stage that depend on none of its inputs.

    Attributes:
        outputs: their places among all outputs.
        parameters: those on which they depend; others may, too.
    """

    outputs: list[int]
    parameters: list[Tensor]


def apart_from_inputs(
    outputs: Sequence[Tensor], inputs: Iterable[Any], parameters: Iterable[Tensor]
) -> Apart:
    """Return the outputs that depend on parameters alone, and these."""
    ends = {autograd_node(each) for each in inputs if isinstance(each, Tensor) and each.requires_grad}
    places, found = [], set[Any]()
    for place, output in enumerate(outputs):
        if output.requires_grad and not (reached := reached_nodes([autograd_node(output)])) & ends:
            places.append(place)
            found |= reached
    return Apart(places, [each for each in parameters if each.requires_grad and autograd_node(each) in found])


def backward_apart(outputs: Sequence[Tensor], gradients: Sequence[Any] | None, apart: Apart) -> None:
    """Add to parameters' gradients those of the outputs that are `apart`; the graph stays.

    A backward pass that begins where gradients of inputs have passed never comes by there.
    """
    if not apart.parameters:
        return
    roots = [outputs[place] for place in apart.outputs]
    given = None if gradients is None else [gradients[place] for place in apart.outputs]
    for parameter, gradient in zip(
        apart.parameters,
        torch.autograd.grad(roots, apart.parameters, given, retain_graph=True),
        strict=True,
    ):
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def _groups_of_parameters(inputs: list[Any], parameters: list[Any], edges: Any) -> list[dict[str, Any]]:
    """Return parameters in groups, each with the nodes at which gradients of inputs pass by them.

    Those that share a node are in one group. torch's own function leaves a parameter in two groups where it
    meets its nodes in another order, by chance, and its backward pass is then run twice.

    Args:
        inputs: autograd's nodes of a stage's inputs.
        parameters: those of its parameters.
        edges: the nodes before each node, as torch lists them.
    """
    passed, _ = reverse_closure(inputs, set(), edges)
    groups: list[dict[str, Any]] = []
    for parameter in parameters:
        _, met = reverse_closure([parameter], passed, edges)
        if not met:
            continue
        joined = {"params": {parameter}, "intermediates": set(met)}
        apart = []
        for group in groups:
            if group["intermediates"] & met:
                joined = {key: joined[key] | group[key] for key in joined}
            else:
                apart.append(group)
        groups = [*apart, joined]
    return groups


setattr(_backward, "get_param_groups", _groups_of_parameters)  # noqa: B010


def backward_in_parts(
    outputs: Sequence[Tensor],
    gradients: Sequence[Any] | None,
    inputs: Sequence[Tensor],
    parameters: Sequence[nn.Parameter],
) -> None:
    """Run a backward pass for `inputs`, and then the one for `parameters`, as a stage's schedule does."""
    backward_for_weights(parameters, backward_for_inputs(outputs, gradients, inputs, parameters))


def backward_for_inputs(
    outputs: Sequence[Tensor],
    gradients: Sequence[Any] | None,
    inputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
) -> Any:
    """Run the part of a backward pass for `inputs`; return what the part for `parameters` needs."""
    backward_apart(outputs, gradients, apart_from_inputs(outputs, inputs, parameters))
    given = None if gradients is None else list(gradients)
    weights: Any = iter(parameters)
    _, groups = stage_backward_input(list(outputs), given, list(inputs), weights)
    return groups


def backward_for_weights(parameters: Iterable[Any], groups: Any) -> Any:
    """Run the part of a backward pass for `parameters`; `groups` is what the part for inputs has left.

    From one of the nodes at which gradients of inputs pass by a parameter to another one autograd may run
    through other groups' nodes, which then mustn't have freed what they saved.
    """
    crossed = any(len(group["intermediates"]) > 1 for group in groups)
    return stage_backward_weight(iter(parameters), groups, retain_graph=crossed)


setattr(stage, "stage_backward_weight", backward_for_weights)  # noqa: B010


class StaticStage(PipelineStage):
    """A stage whose shapes are given.

    torch 2.14's stages agree on that before the first step, and older ones greet each other, by tensors on
    the stage's device. NCCL so connects the ranks, and gloo can't send such tensors from a GPU.

    Attributes:
        greets: whether the stage does so.
    """

    greets = True
    _apart: Apart | None = None

    def _warmup_forward_vote(self, has_backward: bool, received_acc: Tensor | None = None) -> Tensor:
        if self.greets:
            return super()._warmup_forward_vote(has_backward, received_acc)
        return torch.ones(1, dtype=torch.int32)

    def _warmup_backward_result(self, received_result: Tensor | None = None) -> Tensor:
        if self.greets:
            return super()._warmup_backward_result(received_result)
        return torch.ones(1, dtype=torch.int32)

    # Older stages ask for a gradient of whatever they receive, though torch has none of integers.

    def _prepare_forward_infra(self, num_microbatches: int, *inputs: Any, **more: Any) -> Any:
        if KNOWS_GRADIENTS:
            return super()._prepare_forward_infra(num_microbatches, *inputs, **more)
        backward, self.has_backward = self.has_backward, False
        try:
            outputs = super()._prepare_forward_infra(num_microbatches, *inputs, **more)
        finally:
            self.has_backward = backward
        if backward and not self.is_first:
            for received in self.args_recv_info.values():
                for buffer in [each.buffer for each in received if isinstance(each.buffer, Tensor)]:
                    buffer.requires_grad_(_has_gradient(buffer))
        return outputs

    def _create_grad_send_info(self, received: tuple[Any, ...]) -> list[int | None]:
        stages = super()._create_grad_send_info(received)
        if KNOWS_GRADIENTS:
            return stages
        return [
            stage if _has_gradient(each.buffer) else None
            for stage, each in zip(stages, received, strict=True)
        ]

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Return what receives the gradients of micro-batch `bwd_chunk_id`."""
        receives = super().get_bwd_recv_ops(bwd_chunk_id)
        return [each for each in receives if KNOWS_GRADIENTS or _has_gradient(each.tensor)]

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Return what sends the gradients of micro-batch `bwd_chunk_id`."""
        if not KNOWS_GRADIENTS and self.has_backward and not self.is_first:
            received = [each.buffer for each in self.args_recv_info[bwd_chunk_id]]
            self.bwd_cache[bwd_chunk_id] = tuple(
                torch.zeros_like(tensor)
                if gradient is None and isinstance(tensor, Tensor) and _has_gradient(tensor)
                else gradient
                for gradient, tensor in zip(self.bwd_cache[bwd_chunk_id], received, strict=True)
            )
        if self.has_backward and not self.is_first:
            # A backward pass for inputs alone leaves the layout in which autograd has computed them.
            self.bwd_cache[bwd_chunk_id] = tuple(
                gradient.contiguous() if isinstance(gradient, Tensor) else gradient
                for gradient in self.bwd_cache[bwd_chunk_id]
            )
            # torch leaves them at what was received until the next step.
            for info in self.args_recv_info[bwd_chunk_id]:
                if isinstance(buffer := getattr(info, "buffer", None), Tensor):
                    buffer.grad = None
        return super().get_bwd_send_ops(bwd_chunk_id)

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        """Run a whole backward pass, or its part for inputs or for weights.

        torch begins the latter where gradients of inputs have passed, and leaves out what none of them comes
        by, as a position embedding that a stage hands on: that is in the former here.
        """
        if backward_type == "input":
            outputs = bwd_kwargs["stage_output"]
            if self._apart is None:
                inputs = bwd_kwargs["input_values"]
                self._apart = apart_from_inputs(outputs, inputs, self.submod.parameters())
            backward_apart(outputs, bwd_kwargs["output_grads"], self._apart)
        return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        return super()._get_init_p2p_neighbors_ops() if self.greets else []


class MicrobatchSchedule(PipelineScheduleSingle):
    """A schedule that runs one micro-batch after the other, each by `run_microbatch`."""

    @abstractmethod
    def run_microbatch(self, stage: Any, index: int) -> None:
        """Run micro-batch `index` forward and backward through `stage`, transfers included."""

    def forward(self, index: int) -> None:
        """Run the stage's forward pass of micro-batch `index`."""
        self._output = self._stage.forward_one_chunk(
            index, self._inputs[index], self._keywords[index], save_forward_output=False
        )

    def compute_loss(self, index: int) -> None:
        """Compute the loss of micro-batch `index` after its forward pass, if this is the last stage."""
        output, self._output = self._output, None
        self._maybe_compute_loss(self._stage, output, self._targets, index)

    def backward(self, index: int) -> None:
        """Run the stage's backward pass of micro-batch `index`."""
        self._stage.backward_one_chunk(
            index,
            loss=self._maybe_get_loss(self._stage, index),
            last_backward=index == self._n_microbatches - 1,
        )

    def _step_microbatches(
        self,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Tensor] | None = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self._inputs, self._keywords = self._check_inputs(arg_mbs, kwarg_mbs, target_mbs, losses)
        self._targets = target_mbs
        self._initialize_stage(self._inputs[0], self._keywords[0])
        for index in range(self._n_microbatches):
            self.run_microbatch(self._stage, index)
        self._update_losses(self._stage, losses)
        self._stage.scale_grads(self._n_microbatches)
