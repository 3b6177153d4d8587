"""Tell text from everything else, pixel by pixel: balanced cross-entropy, precision and recall of pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from src.tasks.torch.outputs import logits_and_penalty
from src.tasks.torch.task import Task

TINT = np.array([255, 0, 160], dtype=np.uint8)


class TextSegmentation(Task):
    """Text or no text for each pixel of a map, which may be coarser than the image.

    Outputs are logits [samples, 1, rows, columns]. Targets are words: quadrilaterals [samples, most, 4, 2] in
    pixels (x, y) of the image, padded by zeros, their number [samples], and which ones are ignored
    [samples, most]. Pixels of an ignored word count neither as text nor as anything else.
    """

    sums = ("true_positives", "false_positives", "false_negatives")

    def outputs(self, returned: Any) -> tuple[Tensor, ...]:
        """Return the logits; what else there is, is ignored."""
        return logits_and_penalty(returned, self.options.get("output"))[:1]

    def loss(self, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        """Return the sum [] of the samples' balanced cross-entropies.

        That of a sample is half the mean over its text and half the mean over the rest, however little of it
        is text (Zhou et al. 2017, EAST, equation 5, but for a factor that grows with the share of text).
        """
        logits = outputs[0].squeeze(1)
        text, rest = self.masks(logits, targets)
        losses = functional.binary_cross_entropy_with_logits(logits, text.to(logits.dtype), reduction="none")
        return (_mean_within(losses, text) + _mean_within(losses, rest)).sum() / 2

    def score(self, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        """Return the numbers of pixels [3] that are text and found, are found only, and are text only."""
        logits = outputs[0].squeeze(1)
        text, rest = self.masks(logits, targets)
        found = logits > 0
        return torch.stack([(found & text).sum(), (found & rest).sum(), (~found & text).sum()])

    def metrics(self, sums: Mapping[str, float], samples: int) -> dict[str, float]:
        """Return precision, recall and their harmonic mean over all pixels; 0 where nothing is found."""
        hits = sums["true_positives"]
        found, text = hits + sums["false_positives"], hits + sums["false_negatives"]
        return {
            "f_measure": 2 * hits / (found + text) if hits else 0.0,
            "precision": hits / found if hits else 0.0,
            "recall": hits / text if hits else 0.0,
        }

    def draw(self, image: np.ndarray, outputs: tuple[Tensor, ...], names: tuple[str, ...]) -> np.ndarray:
        """Return the image [height, width, 3] with what is taken for text in colour."""
        found = functional.interpolate(outputs[0].float(), image.shape[:2])[0, 0] > 0
        picture = image.copy()
        picture[found.cpu().numpy()] = picture[found.cpu().numpy()] // 2 + TINT // 2
        return picture

    def masks(self, logits: Tensor, targets: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return which pixels are text and which neither text nor ignored, bool [samples, rows, columns]."""
        quadrilaterals, numbers, flags = targets
        height, width, _ = self.shape
        rows, columns = logits.shape[-2:]
        # Centres of the map's pixels, in pixels of the image.
        like = quadrilaterals
        x = (torch.arange(columns, dtype=like.dtype, device=like.device) + 0.5) * (width / columns)
        y = (torch.arange(rows, dtype=like.dtype, device=like.device) + 0.5) * (height / rows)
        text = torch.zeros(logits.shape, dtype=torch.bool, device=like.device)
        ignored = torch.zeros_like(text)
        # Word by word, because all words' masks at once may not fit into memory.
        for word in range(int(numbers.max())):
            inside = fill(quadrilaterals[:, word], x, y)
            is_ignored = flags[:, word, None, None].bool()
            text |= inside & ~is_ignored
            ignored |= inside & is_ignored
        return text & ~ignored, ~text & ~ignored


def fill(quadrilaterals: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return which points of a grid are inside quadrilaterals, bool [samples, rows, columns].

    A point is inside where a ray from it to the right crosses an odd number of edges, which holds of any
    polygon, concave ones too.

    Args:
        quadrilaterals: corners [samples, 4, 2] in turn.
        x: of the grid's columns [columns].
        y: of the grid's rows [rows].
    """
    inside = torch.zeros((len(quadrilaterals), len(y), len(x)), dtype=torch.bool, device=x.device)
    for begin, end in zip(quadrilaterals.unbind(1), quadrilaterals.roll(-1, 1).unbind(1), strict=True):
        (x1, y1), (x2, y2) = begin[..., None].unbind(1), end[..., None].unbind(1)
        spans = (y1 <= y) != (y2 <= y)
        # It isn't finite for a level edge, which spans no row.
        crossing = x1 + (x2 - x1) * (y - y1) / (y2 - y1)
        inside ^= spans[..., None] & (x < crossing[..., None])
    return inside


def _mean_within(losses: Tensor, mask: Tensor) -> Tensor:
    """Return each sample's mean [samples] over the pixels of a mask; 0 where there are none."""
    return (losses * mask).sum((1, 2)) / mask.sum((1, 2)).clamp(min=1)
