"""The next token of each: a token's loss, perplexity, and which models can't be trained by it."""

from __future__ import annotations

import math

import pytest
import torch

from src.config import ConfigError
from src.runtime.torch.scoring import scores
from src.runtime.torch.scoring import test_sums as sums_of
from src.tasks.torch.next_token import NextToken

TASK = NextToken(classes=4, shape=(3,), options={})


def test_loss_and_perplexity_are_a_tokens_and_ignored_ones_dont_count() -> None:
    # Of four equally likely tokens each has a cross-entropy of log 4, and a perplexity of 4.
    logits = torch.zeros(2, 3, 4)
    targets = torch.tensor([[0, 1, -100], [0, 3, -100]])
    found = scores(TASK, sums_of(TASK, (logits,), (targets,)).tolist())
    assert found.loss == pytest.approx(math.log(4)) and found.samples == 2
    assert found.metrics["perplexity"] == pytest.approx(4)
    # The first of equal ones is the answer.
    assert found.metrics["accuracy"] == pytest.approx(0.5)
    assert float(TASK.loss((logits,), (targets,))) == pytest.approx(4 * math.log(4))
    assert int(TASK.count((targets,))) == 4


def test_a_perplexity_past_all_numbers_is_infinite() -> None:
    sums = {"cross_entropy": 1e6, "correct": 0.0, "tokens": 1.0}
    assert TASK.metrics(sums, 1)["perplexity"] == math.inf


def test_logits_of_samples_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"needs logits \[samples, length, vocabulary\], and the model's have 2"
    ):
        TASK.outputs(torch.zeros(2, 4))


def test_a_model_that_sees_later_tokens_is_refused() -> None:
    tokens = torch.tensor([[0, 1, 2], [3, 2, 1]])
    embedded = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))

    def causal(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (embedded[inputs[0]].cumsum(1),)

    def both_ways(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (embedded[inputs[0]].flip(1).cumsum(1).flip(1),)

    TASK.check_model(causal, (tokens,))
    with pytest.raises(ConfigError, match="sees the tokens that it is to tell"):
        TASK.check_model(both_ways, (tokens,))
