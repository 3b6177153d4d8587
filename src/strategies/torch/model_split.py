"""Model split: layers over devices, one micro-batch at a time; all stages but one wait (paper 4, Fig. 3).

stage 0 | F0 .. .. B0 | F1 .. .. B1
stage 1 | .. F0 B0 .. | .. F1 B1 ..
"""

from __future__ import annotations

from typing import Any

from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from src.measure.recorder import Recorder
from src.runtime.torch import stages
from src.runtime.torch.pipeline_stage import TimedStage
from src.worker import Run


class Sequential(PipelineScheduleSingle):
    """A micro-batch's backward pass ends before the next one's forward pass begins."""

    def _step_microbatches(
        self,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        inputs, keywords = self._check_inputs(arg_mbs, kwarg_mbs, target_mbs, losses)
        self._initialize_stage(inputs[0], keywords[0])
        stage = self._stage
        for index in range(self._n_microbatches):
            exchange(stage.get_fwd_recv_ops(index))
            output = stage.forward_one_chunk(
                index, inputs[index], keywords[index], save_forward_output=return_outputs
            )
            exchange(stage.get_fwd_send_ops(index))
            self._maybe_compute_loss(stage, output, target_mbs, index)
            exchange(stage.get_bwd_recv_ops(index))
            stage.backward_one_chunk(
                index,
                loss=self._maybe_get_loss(stage, index),
                last_backward=index == self._n_microbatches - 1,
            )
            exchange(stage.get_bwd_send_ops(index))
        self._update_losses(stage, losses)
        stage.scale_grads(self._n_microbatches)


def exchange(operations: list[Any]) -> None:
    """Sends or receives, and waits until that is done."""
    works = [op.op(op.tensor, op.peer, group=op.group, tag=op.tag) for op in operations]
    for work in works:
        work.wait()


def train(run: Run, recorder: Recorder) -> None:
    """Trains this rank's stage."""

    def schedule(stage: TimedStage, microbatches: int, loss: Any) -> PipelineScheduleSingle:
        return Sequential(stage, microbatches, loss_fn=loss)

    stages.train(run, recorder, schedule, overlaps=False)
