"""Classify: one class a sample, by cross-entropy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor
from torch.nn import functional

from src.config import ConfigError
from src.tasks.torch.outputs import logits_and_penalty
from src.tasks.torch.task import Task

# Pixels of the line of text below an image.
CAPTION = 14


class Classification(Task):
    """One of several classes for each sample.

    Outputs are logits [samples, classes], and maybe a penalty [samples], whose mean is added to that of the
    cross-entropy: a regularising term that the model computes itself, as the KL divergence of Bayes by
    Backprop. Targets are labels, int64 [samples].
    """

    sums = ("correct",)

    def outputs(self, returned: Any) -> tuple[Tensor, ...]:
        """Return the logits, and the penalty where something has that name; all else is ignored."""
        return logits_and_penalty(returned, self.options.get("output"))

    def loss(self, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        """Return the summed cross-entropy [] of the samples, with the sum of their penalties.

        Raises:
            ConfigError: for a penalty that isn't one of each sample: how much it weighs would depend on how
                batches are divided.
        """
        logits, *penalties = outputs
        loss = functional.cross_entropy(logits, targets[0], reduction="sum")
        for penalty in penalties:
            if penalty.shape != logits.shape[:1]:
                raise ConfigError(
                    f"the model's penalty has the shape {[*penalty.shape]}, and must have one number for "
                    f"each sample, [{len(logits)}] here; of one for all return penalty.expand(len(logits))"
                )
            loss = loss + penalty.sum()
        return loss

    def score(self, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        """Return the number of correct answers [1]."""
        return (outputs[0].argmax(1) == targets[0]).sum().reshape(1)

    def metrics(self, sums: Mapping[str, float], samples: int) -> dict[str, float]:
        """Return the accuracy, the share of correct answers."""
        return {"accuracy": sums["correct"] / samples}

    def draw(self, image: np.ndarray, outputs: tuple[Tensor, ...], names: tuple[str, ...]) -> np.ndarray:
        """Return the image [height, width, 3] above the likeliest class and its probability."""
        probability, label = functional.softmax(outputs[0][0], 0).max(0)
        height, width, _ = image.shape
        picture = Image.new("RGB", (width, height + CAPTION), "white")
        picture.paste(Image.fromarray(image))
        ImageDraw.Draw(picture).text((2, height), f"{names[int(label)]}: {float(probability):.2f}", "black")
        return np.asarray(picture)
