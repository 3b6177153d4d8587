"""Check that a model and a task go together, before any rank is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from src.config import ConfigError
from src.data.samples import Samples
from src.models import adapt
from src.models.torch.unchanged import evaluating, unchanged
from src.runtime.common.context import RankContext
from src.runtime.torch import hook_check, saved_check, scoring, setup
from src.runtime.torch.tensors import Tensors, input_tensors, target_tensors
from src.tasks.torch.outputs import autocast, named_outputs

SAMPLES = 2


def check_task(context: RankContext, model: nn.Module, note: Callable[[str], None] = print) -> None:
    """Train on two samples and score three test samples by the configured task; leave the model as it was.

    `note` is told which outputs of the model the task ignores. Whatever the task or the model raises is
    raised as it is.

    Raises:
        ConfigError: for a task whose loss, sums or metrics aren't those that it says they are, or a model
            that has nothing to train, or that the task can't train.
    """
    task, cpu = setup.make_task(context), torch.device("cpu")
    name = f"task={context.config.task['name']}"

    def run(samples: Samples) -> tuple[object, Tensors, Tensors]:
        returned = model(*input_tensors(context, samples.inputs, cpu))
        return returned, task.outputs(returned), target_tensors(task, samples.targets, cpu)

    failure: Exception | None = None
    with unchanged(model):
        weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        with autocast(context.config.precision, cpu):
            returned, taken, targets = run(context.arrays.train.read(slice(SAMPLES)))
            loss = task.loss(taken, targets)
        if not loss.requires_grad:
            raise ConfigError(
                f"{adapt.key_and_name(context.config)}: nothing to train: no parameter has a part in the loss"
            )
        if not loss.shape:
            model.zero_grad()
            loss.backward()
            _check_exchange(context, model, weights)
            hook_check.check_hooks(context, model, note)
        # What the model has kept of these samples must do for another number of them.
        others = context.arrays.test.read(slice(SAMPLES + 1))
        try:
            with evaluating(model):
                _, outputs, targets = run(others)
        except Exception as error:
            failure = error
    if failure is not None:
        with unchanged(model), evaluating(model):
            run(others)
        raise ConfigError(
            f"{adapt.key_and_name(context.config)}: keeps something of each batch, and fails for one of "
            f"another size, as the last ones are: {' '.join(str(failure).split())}"
        ) from failure
    if context.config.checkpoint_every is not None or context.config.resume is not None:
        saved_check.check_saved(context, model, lambda: run(context.arrays.train.read(slice(SAMPLES))))
    with unchanged(model), evaluating(model):
        first = input_tensors(context, context.arrays.train.read(slice(SAMPLES)).inputs, cpu)
        task.check_model(lambda inputs: task.outputs(model(*inputs)), first)
    with torch.no_grad():
        loss, score = task.loss(outputs, targets), task.score(outputs, targets)
    ignored = [
        other for other, each in named_outputs(returned).items() if not any(each is one for one in taken)
    ]
    if ignored:
        note(f"note: the task takes one of the model's outputs and ignores the others: {', '.join(ignored)}")
    if loss.shape:
        raise ConfigError(f"{name}: its loss must be one number, the sum, and has the shape {[*loss.shape]}")
    if score.shape != (len(task.sums),):
        raise ConfigError(f"{name}: its score must be {len(task.sums)} sums, and has {[*score.shape]}")
    found = scoring.scores(task, scoring.test_sums(task, outputs, targets).tolist())
    if missing := [each for each in context.config.task["metrics"] if each not in found.metrics]:
        known = ", ".join(found.metrics) or "none"
        raise ConfigError(f"{name}: its file lists the metric {missing[0]}, and it gives {known}")


def _check_exchange(context: RankContext, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Raise `ConfigError` where a model's workers would train different models, or can't exchange gradients.

    Args:
        context: the context of the run.
        model: after a forward and a backward pass in training.
        weights: its parameters before them, by name.
    """
    strategy = context.config.strategy
    synchronised = [name for name, layer in model.named_modules() if isinstance(layer, nn.SyncBatchNorm)]
    if synchronised and context.config.data_parallel_degree > 1:
        raise ConfigError(
            f"strategy={strategy['name']}: {synchronised[0]} is nn.SyncBatchNorm, which not all strategies "
            "synchronise; build the model with nn.BatchNorm, and choose batchnorm=sync under ddp or mpi"
        )
    if not (context.config.data_parallel_degree > 1 or "serve" in strategy):
        return
    for name, parameter in model.named_parameters():
        if not torch.equal(parameter, weights[name]):
            raise ConfigError(
                f"strategy={strategy['name']}: the model's forward pass writes into its parameter {name}, "
                "which each worker would do by its own samples; choose strategy=single"
            )
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if gradient is not None and (gradient.is_sparse or gradient.is_complex()):
            kind = "sparse" if gradient.is_sparse else f"of {str(gradient.dtype).removeprefix('torch.')}"
            advice = "build the layer with sparse=False, or " if gradient.is_sparse else ""
            raise ConfigError(
                f"strategy={strategy['name']}: the gradient of {name} is {kind}, and dense real ones are "
                f"exchanged; {advice}choose strategy=single"
            )
    default = torch.get_default_dtype()
    for name, parameter in model.named_parameters():
        if "serve" in strategy and parameter.requires_grad and parameter.dtype != default:
            raise ConfigError(
                f"strategy={strategy['name']}: the parameter {name} is of {parameter.dtype}, and servers "
                f"have all of them in {default}; choose strategy=single or ddp"
            )
