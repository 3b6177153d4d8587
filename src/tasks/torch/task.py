"""Define what a torch task is: a loss that is a mean, metrics that add up, and a picture of a prediction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from src.tasks.torch.outputs import model_outputs


class Task(ABC):
    """A task, what is learned of a sample; made as `Task(classes=..., shape=..., options=...)`.

    Batches are divided among ranks and micro-batches, of any sizes. So a task gives sums, which add up
    exactly, and never means: whoever calls it divides by the number of samples, or of targets, in all parts
    together.

    Attributes:
        divisor: what the loss is a mean over: `samples`, or `targets`, which `count` counts (tokens, boxes,
            pixels). The mean is over all that a global batch, or the test set, has of them.
        sums: names of the sums that `score` returns.
        scores_training: whether training samples are scored too, and not test samples alone; `False` where
            that would take long beside a step.
        classes: how many classes the dataset has, or numbers to predict.
        shape: (height, width, channels) of the dataset's images.
        options: those of the task's YAML file.
    """

    divisor: ClassVar[Literal["samples", "targets"]] = "samples"
    sums: ClassVar[tuple[str, ...]] = ()
    scores_training: ClassVar[bool] = True

    def __init__(self, *, classes: int, shape: tuple[int, ...], options: Mapping[str, Any]) -> None:
        self.classes = classes
        self.shape = shape
        self.options = options

    def derive(self, targets: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """Return further targets [samples, ...] that are made of the dataset's, maps of them for instance.

        `loss` and `score` get them after the dataset's own. They are made on the host where samples are read,
        for a GPU ahead of it and in several threads at once.
        """
        return ()

    def outputs(self, returned: Any) -> tuple[Tensor, ...]:
        """Return the outputs that the loss and the scores take of what the model has `returned`.

        By default these are all of its tensors.

        Raises:
            ConfigError: where the task can't tell which of them it takes.
        """
        return model_outputs(returned)

    @abstractmethod
    def loss(self, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        """Return the sum [] of the loss over samples, or over targets where these are the divisor.

        Args:
            outputs: the model's outputs [samples, ...], as the method `outputs` returns them.
            targets: the dataset's targets [samples, ...], then those that `derive` makes of them; of numbers
                with a fraction in torch's default type.
        """

    def count(self, targets: tuple[Tensor, ...]) -> Tensor:
        """Return the number [] of targets that the loss of these samples is a sum over.

        It is asked for where `divisor` is `targets`, and depends on the dataset's targets alone: each rank
        counts those of a whole global batch.
        """
        raise NotImplementedError(f"{type(self).__name__} has the divisor {self.divisor!r} and no `count`")

    def score(self, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        """Return the sums [len(self.sums)] of these samples, in the order of their names."""
        return outputs[0].new_zeros(0)

    @abstractmethod
    def metrics(self, sums: Mapping[str, float], samples: int) -> dict[str, float]:
        """Return the metrics that the task's YAML file lists, the first of which is shown.

        Args:
            sums: the sums of all samples, by name.
            samples: number of all samples.
        """

    def check_model(  # noqa: B027
        self, run: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]], inputs: tuple[Tensor, ...]
    ) -> None:
        """Check, before a run, that a model is one that the task can train.

        Args:
            run: returns the outputs that the task takes, in evaluation, of inputs.
            inputs: those of two samples [samples, ...].

        Raises:
            ConfigError: where it isn't, with what to choose instead.
        """

    def draw(self, image: np.ndarray, outputs: tuple[Tensor, ...], names: tuple[str, ...]) -> np.ndarray:
        """Return a picture, uint8 [height, width, channels], of what the model sees in an image.

        Args:
            image: the sample's image, of the picture's shape and type.
            outputs: the model's outputs for this one sample [1, ...].
            names: the dataset's names.
        """
        return image
