"""Learn the token that follows each token of a sequence, by cross-entropy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from src.config import ConfigError
from src.tasks.torch.outputs import logits_and_penalty
from src.tasks.torch.task import Task

# A target of this number counts for nothing, as in torch and Hugging Face's transformers.
IGNORED = -100
AXES = 3


class NextToken(Task):
    """The next token for each token of a sequence.

    Outputs are logits [samples, length, vocabulary], where each may depend on the tokens up to its own alone.
    Targets are tokens, int64 [samples, length], each the one after the input's; those of `IGNORED` don't
    count. The loss is a mean over tokens.
    """

    divisor = "targets"
    sums = ("cross_entropy", "correct", "tokens")
    # It takes as long as the loss once more, of a large vocabulary a large part of a step.
    scores_training = False

    def outputs(self, returned: Any) -> tuple[Tensor, ...]:
        """Return the logits; raise `ConfigError` where they aren't a token's."""
        logits = logits_and_penalty(returned, self.options.get("output"))[0]
        if logits.ndim != AXES:
            raise ConfigError(
                "task=next_token: needs logits [samples, length, vocabulary], and the model's have "
                f"{logits.ndim} axes; choose a causal language model, as model.architecture=GPT2LMHeadModel"
            )
        return (logits,)

    def loss(self, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        """Return the summed cross-entropy [] of the tokens."""
        return functional.cross_entropy(
            outputs[0].flatten(0, 1), targets[0].flatten(), reduction="sum", ignore_index=IGNORED
        )

    def count(self, targets: tuple[Tensor, ...]) -> Tensor:
        """Return the number [] of tokens that count."""
        return (targets[0] != IGNORED).sum()

    def score(self, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        """Return the summed cross-entropy, and the numbers of right answers and of tokens [3]."""
        correct = (outputs[0].argmax(-1) == targets[0]).sum()
        loss = self.loss(outputs, targets)
        return torch.stack([loss, correct.to(loss), self.count(targets).to(loss)])

    def metrics(self, sums: Mapping[str, float], samples: int) -> dict[str, float]:
        """Return the perplexity, e to the mean cross-entropy of a token, and the share of right answers."""
        tokens = max(1.0, sums["tokens"])
        try:
            perplexity = math.exp(sums["cross_entropy"] / tokens)
        except OverflowError:
            perplexity = math.inf
        return {"perplexity": perplexity, "accuracy": sums["correct"] / tokens}

    def check_model(
        self, run: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]], inputs: tuple[Tensor, ...]
    ) -> None:
        """Raise `ConfigError` where an answer depends on the tokens after it, which it is to tell."""
        changed = inputs[0].clone()
        changed[:, -1] = (changed[:, -1] + 1) % self.classes
        before, after = (run((tokens, *inputs[1:]))[0][:, :-1] for tokens in (inputs[0], changed))
        if not torch.allclose(before, after, rtol=1e-3, atol=1e-4):
            raise ConfigError(
                "task=next_token: the model sees the tokens that it is to tell, for its answers change with "
                "later ones; choose a causal model, as model.architecture=GPT2LMHeadModel, or for one of "
                "BERT's kind +model.options.is_decoder=true"
            )
