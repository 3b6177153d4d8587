"""Bayes by Backprop: its divergence is that of the definition, it draws in training alone, and can be cut."""

from __future__ import annotations

import torch
from torch.distributions import Normal, kl_divergence
from torch.nn import functional

from src.models.torch import bayes_mlp


def build() -> bayes_mlp.BayesMLP:
    torch.manual_seed(0)
    return bayes_mlp.build(classes=3, shape=(4, 4, 1), train_samples=50, hidden=5, layers=1, prior=0.2)


def test_the_penalty_is_the_divergence_over_the_training_samples() -> None:
    model = build()
    prior = Normal(0.0, 0.2)
    expected = sum(
        kl_divergence(Normal(layer.mean, functional.softplus(layer.rho)), prior).sum()
        for layer in model.layers
    )
    penalty = model(torch.rand(7, 1, 4, 4))["penalty"]
    torch.testing.assert_close(penalty, (expected / 50).expand(7))


def test_weights_are_drawn_in_training_alone() -> None:
    model, images = build(), torch.rand(2, 1, 4, 4)
    first, second = (model(images)["logits"] for _ in range(2))
    assert not torch.equal(first, second)
    model.eval()
    hidden = functional.linear(images.flatten(1), model.layers[0].mean[:, :-1], model.layers[0].mean[:, -1])
    last = model.layers[1].mean
    expected = functional.linear(hidden.relu(), last[:, :-1], last[:, -1])
    torch.testing.assert_close(model(images)["logits"], expected)


def test_the_gradient_of_a_deviation_is_that_of_the_noise() -> None:
    # Equation 4: the weight is mu + log(1 + exp(rho)) * noise, the noise drawn apart from both.
    model = build()
    layer = model.layers[1]
    torch.manual_seed(1)
    outputs, _ = layer(torch.ones(1, 5))
    (gradient,) = torch.autograd.grad(outputs.sum(), layer.rho)
    torch.manual_seed(1)
    noise = torch.randn_like(layer.mean)
    torch.testing.assert_close(gradient, noise * torch.sigmoid(layer.rho))
