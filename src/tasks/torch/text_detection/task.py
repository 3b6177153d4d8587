"""Find words by boxes: EAST's losses, and precision and recall of words as in ICDAR 2015."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.nn import functional

from src.config import ConfigError
from src.tasks.torch.task import Task
from src.tasks.torch.text_detection import matching, rbox
from src.tasks.torch.text_detection.nms import locality_aware_nms

# Pixels of the image to a pixel of the maps.
STRIDE = 4
# Share of a map's pixels whose boxes are merged, the most certain ones: a model that has learned nothing sees
# text everywhere.
MOST_PIXELS = 0.25
OUTPUTS = 2
# Square pixels that intersection and union are increased by, so that no logarithm is of 0.
SMOOTHING = 1.0
COLOUR, LINE = (255, 0, 160), 2


class TextDetection(Task):
    """A box for each word, turned as the word is (Zhou et al. 2017, EAST).

    Outputs are score logits [samples, 1, rows, columns] and a geometry [samples, 5, rows, columns], at a
    quarter of the image's resolution, as `rbox.Maps` has it. Targets are words: quadrilaterals
    [samples, most, 4, 2] in pixels (x, y) of the image, padded by zeros, their number [samples], and which
    ones are ignored [samples, most].

    Every term of the loss is a mean over pixels of one sample: what batch it is in doesn't matter.
    """

    sums = ("matched", "found", "words")
    # Boxes are merged on the host, which takes longer than a step of a small model.
    scores_training = False

    def derive(self, targets: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """Return the maps of text [samples, rows, columns], of what is ignored, and the geometry."""
        rows, columns = (-(-side // STRIDE) for side in self.shape[:2])
        maps = [
            rbox.encode(words[:number], ignored[:number] > 0, (rows, columns), STRIDE, self.options["shrink"])
            for words, number, ignored in zip(*targets, strict=True)
        ]
        return tuple(np.stack(each) for each in zip(*maps, strict=True))

    def loss(self, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        """Return the sum [] of the samples' losses, of the score and of the geometry (equation 4).

        Raises:
            ConfigError: for a model that doesn't give a score and a geometry.
        """
        if len(outputs) != OUTPUTS or outputs[1].shape[1] != rbox.GEOMETRY:
            raise ConfigError(
                "task=text_detection: the model must give a score and a geometry, as model=east does"
            )
        *_, text, ignored, truth = targets
        # Products of distances need more digits than half precision has.
        logits, geometry = (each.to(truth.dtype) for each in (outputs[0].squeeze(1), outputs[1]))
        learned = 1 - ignored.to(logits.dtype)
        mask = text.to(logits.dtype)
        terms = _dice(logits, mask, learned) if self._by_dice else _balanced(logits, mask, learned)
        return (terms + self._geometry_loss(geometry, truth, mask)).sum()

    @property
    def _by_dice(self) -> bool:
        return bool(self.options["score_loss"] == "dice")

    def _geometry_loss(self, geometry: Tensor, truth: Tensor, mask: Tensor) -> Tensor:
        """Return each sample's mean loss of boxes and angles [samples] over its text (equations 8 to 11)."""
        top, right, bottom, left, angle = geometry.unbind(1)
        true_top, true_right, true_bottom, true_left, true_angle = truth.unbind(1)
        height = torch.minimum(top, true_top) + torch.minimum(bottom, true_bottom)
        width = torch.minimum(left, true_left) + torch.minimum(right, true_right)
        shared = height * width
        union = (top + bottom) * (left + right) + (true_top + true_bottom) * (true_left + true_right) - shared
        boxes = torch.log((union + SMOOTHING) / (shared + SMOOTHING))
        angles = 1 - torch.cos(angle - true_angle)
        return mean_within(boxes + self.options["angle_weight"] * angles, mask)

    def score(self, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        """Return how many words are found [3]: matched ones, all found ones, and all that there are."""
        quadrilaterals, numbers, flags = (tensor.cpu().numpy() for tensor in targets[:3])
        totals = np.zeros(len(self.sums))
        for sample, number in enumerate(numbers):
            found, _ = self.boxes(*(tensor[sample] for tensor in outputs))
            words, ignored = quadrilaterals[sample, :number], flags[sample, :number] > 0
            totals += matching.count(found, words, ignored)
        return torch.from_numpy(totals)

    def metrics(self, sums: Mapping[str, float], samples: int) -> dict[str, float]:
        """Return precision, recall and their harmonic mean over all words; 0 where nothing is matched."""
        matched, found, words = (sums[name] for name in self.sums)
        return {
            "f_measure": 2 * matched / (found + words) if matched else 0.0,
            "precision": matched / found if matched else 0.0,
            "recall": matched / words if matched else 0.0,
        }

    def draw(self, image: np.ndarray, outputs: tuple[Tensor, ...], names: tuple[str, ...]) -> np.ndarray:
        """Return the image [height, width, 3] with a box around each word that is found."""
        picture = Image.fromarray(image)
        pen = ImageDraw.Draw(picture)
        # The picture may be larger than the image that the model saw.
        scale = np.array(picture.size) / self.shape[1::-1]
        for box in self.boxes(*(tensor[0] for tensor in outputs))[0]:
            corners = [tuple(corner) for corner in (box * scale).tolist()]
            pen.line([*corners, corners[0]], fill=COLOUR, width=LINE)
        return np.asarray(picture)

    def boxes(self, logits: Tensor, geometry: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Return the words that a sample's maps show: corners [found, 4, 2] in pixels, and scores [found].

        Args:
            logits: of the score [1, rows, columns].
            geometry: [5, rows, columns].
        """
        scores = logits[0].sigmoid().double().cpu().numpy()
        # NaN is above nothing, so that a model that has diverged finds nothing.
        rows, columns = np.nonzero(scores > self.options["least_score"])
        most = int(MOST_PIXELS * scores.size)
        if len(rows) > most:
            kept = np.sort(np.argpartition(-scores[rows, columns], most)[:most])
            rows, columns = rows[kept], columns[kept]
        corners = rbox.decode(geometry.cpu().numpy()[:, rows, columns], rows, columns, STRIDE)
        return locality_aware_nms(corners, scores[rows, columns], self.options["merge_iou"])


def _balanced(logits: Tensor, mask: Tensor, learned: Tensor) -> Tensor:
    """Return the class-balanced cross-entropy of each sample [samples] (equation 5).

    Text weighs as much as the rest, however little of it there is: the sum over pixels with the weights of
    the equation is divided by the sum of these weights. Without text it is half the mean over the rest.
    """
    losses = functional.binary_cross_entropy_with_logits(logits, mask, reduction="none")
    return (mean_within(losses, mask) + mean_within(losses, (1 - mask) * learned)) / 2


def _dice(logits: Tensor, mask: Tensor, learned: Tensor) -> Tensor:
    """Return 1 less each sample's dice coefficient [samples] (Milletari et al. 2016, V-Net, section 3)."""
    scores = logits.sigmoid() * learned
    shared = (scores * mask).sum((1, 2))
    return 1 - 2 * (shared + SMOOTHING) / ((scores + mask).sum((1, 2)) + 2 * SMOOTHING)


def mean_within(values: Tensor, mask: Tensor) -> Tensor:
    """Return each sample's mean [samples] over the pixels of a mask; 0 where there are none."""
    return (values * mask).sum((1, 2)) / mask.sum((1, 2)).clamp(min=1)
