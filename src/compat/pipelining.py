"""Wrap private parts of `torch.distributed.pipelining`: schedules' waits, stages' greetings, a schedule."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

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


def apart_from_inputs(
    outputs: Iterable[Tensor], inputs: Iterable[Any], parameters: Iterable[Tensor]
) -> list[Tensor]:
    """Return the parameters on which outputs depend, but none that depends on an input, too."""
    from_inputs, others = set[Any](), set[Any]()
    ends = {_node(each) for each in inputs if isinstance(each, Tensor) and each.requires_grad}
    for output in (each for each in outputs if each.requires_grad):
        reached = _reached(_node(output))
        if reached & ends:
            from_inputs |= reached
        else:
            others |= reached
    return [each for each in parameters if each.requires_grad and _node(each) in others - from_inputs]


def backward_apart(
    outputs: Sequence[Tensor], gradients: Sequence[Any] | None, parameters: Sequence[Tensor]
) -> None:
    """Add to the gradients of `parameters` those of outputs with such `gradients`; the graph stays."""
    if not parameters:
        return
    given = [None] * len(outputs) if gradients is None else gradients
    pairs = [pair for pair in zip(outputs, given, strict=True) if pair[0].requires_grad]
    roots, weights = [root for root, _ in pairs], [weight for _, weight in pairs]
    for parameter, gradient in zip(
        parameters, torch.autograd.grad(roots, parameters, weights, retain_graph=True), strict=True
    ):
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


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


def backward_for_weights(parameters: Sequence[Tensor], groups: Any) -> None:
    """Run the part of a backward pass for `parameters`; `groups` is what the part for inputs has left."""
    weights: Any = iter(parameters)
    stage_backward_weight(weights, groups)


def _node(tensor: Tensor) -> Any:
    """Return the node of autograd's graph that has a tensor's gradient."""
    return torch.autograd.graph.get_gradient_edge(tensor).node


def _reached(root: Any) -> set[Any]:
    """Return the nodes of autograd's graph from `root` on."""
    found, left = {root}, [root]
    while left:
        new = {node for node, _ in left.pop().next_functions if node is not None} - found
        found |= new
        left.extend(new)
    return found


class StaticStage(PipelineStage):
    """A stage whose shapes are given.

    torch 2.14's stages agree on that before the first step, and older ones greet each other, by tensors on
    the stage's device. NCCL so connects the ranks, and gloo can't send such tensors from a GPU.

    Attributes:
        greets: whether the stage does so.
    """

    greets = True
    _apart: list[Tensor] | None = None

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

        torch begins the latter where gradients of inputs have passed, and leaves out parameters that none of
        them comes by, as a position embedding that a stage only hands on: those are in the former here.
        """
        if backward_type == "input":
            if self._apart is None:
                outputs, inputs = bwd_kwargs["stage_output"], bwd_kwargs["input_values"]
                self._apart = apart_from_inputs(outputs, inputs, self.submod.parameters())
            backward_apart(bwd_kwargs["stage_output"], bwd_kwargs["output_grads"], self._apart)
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
