"""Build a Bayesian network of dense layers, trained by Bayes by Backprop (Blundell 2015).

Each weight has a Gaussian posterior with mean mu and deviation log(1 + exp(rho)), from which a forward pass
in training draws once for all of its samples (section 3.2, steps 1 to 3). The loss is equation 2 over the
number of training samples: the mean cross-entropy, and the posterior's KL divergence from a Gaussian prior,
of which each training sample has the same part (the divergence over M equal minibatches, equation 8). Both
are Gaussian, so that the divergence has a closed form and needs no sampling. Evaluation uses the means.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

# Deviation of the posterior at the start, a small part of the weights' own scale.
INITIAL_DEVIATION = 0.01


def draw(mean: Tensor, deviation: Tensor, *, training: bool) -> Tensor:
    """Return weights that are drawn from a Gaussian, or in evaluation its mean."""
    return mean + deviation * torch.randn_like(mean) if training else mean


# A cut model calls it with the flag of its own stage.
fx.wrap("draw")


class BayesLinear(nn.Module):
    """A dense layer whose weights and biases have Gaussian posteriors.

    Attributes:
        mean: of the weights [outputs, inputs + 1]; the last column is the bias.
        rho: the deviation is log(1 + exp(rho)).
        prior: deviation of the weights' prior, a Gaussian around 0.
    """

    def __init__(self, inputs: int, outputs: int, prior: float) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.mean = nn.Parameter(torch.empty(outputs, inputs + 1).uniform_(-bound, bound))
        self.rho = nn.Parameter(torch.full_like(self.mean, math.log(math.expm1(INITIAL_DEVIATION))))
        self.prior = prior

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the layer's outputs [batch, outputs], and the posterior's KL divergence from the prior [].

        In training the weights are drawn anew.
        """
        deviation = functional.softplus(self.rho)
        weights = draw(self.mean, deviation, training=self.training)
        ratio = (deviation.square() + self.mean.square()) / self.prior**2
        divergence = 0.5 * (ratio - 1).sum() - (deviation / self.prior).log().sum()
        return functional.linear(features, weights[:, :-1], weights[:, -1]), divergence


class BayesMLP(nn.Module):
    """A network of dense layers with ReLU between them, from images [batch, channels, height, width]."""

    def __init__(self, sizes: list[int], prior: float, train_samples: int) -> None:
        """Make layers between so many units each; the prior's deviation is `prior`."""
        super().__init__()
        self.layers = nn.ModuleList(BayesLinear(*pair, prior) for pair in itertools.pairwise(sizes))
        self.train_samples = train_samples

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return `logits` [batch, classes], and `penalty` [batch], of the divergence a part a sample."""
        first, *others = self.layers
        features, divergence = first(images.flatten(1))
        for layer in others:
            features, more = layer(features.relu())
            divergence = divergence + more
        return {"logits": features, "penalty": (divergence / self.train_samples).expand(features.shape[0])}


def build(
    *, classes: int, shape: tuple[int, int, int], train_samples: int, hidden: int, layers: int, prior: float
) -> nn.Module:
    """Build a Bayesian network of images with `shape` (height, width, channels).

    Args:
        classes: how many there are.
        shape: of the images.
        train_samples: how many the training set has, over which the KL divergence is spread.
        hidden: units of each hidden layer.
        layers: number of hidden layers.
        prior: the prior's deviation.
    """
    height, width, channels = shape
    return BayesMLP([height * width * channels, *[hidden] * layers, classes], prior, train_samples)
