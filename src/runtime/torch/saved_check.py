"""Check that checkpoints have all that a model keeps of its steps."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from src.config import ConfigError
from src.models.torch.unchanged import unchanged
from src.partition.torch import kept
from src.partition.torch.own_functions import CHANGES, python_effects
from src.runtime.common.context import RankContext
from src.runtime.torch import step_seeds


def check_saved(context: RankContext, model: nn.Module, run: Callable[[], object]) -> None:
    """Raise `ConfigError` where each step moves something of a model that checkpoints don't have.

    `run` does a forward pass. What the first one alone makes, as a cache, the next process makes, too.
    """
    config, changed = context.config, list[str]()
    state = model.state_dict()

    def tensors() -> dict[str, Tensor]:
        further = {each.name: each.value for each in kept.new(model, {})}
        found = {**dict(model.named_buffers()), **further}
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}

    with unchanged(model):
        step_seeds.seed(config, 0, 0)
        run()
        before = {name: value.detach().clone() for name, value in tensors().items() if name not in state}
        # What both passes make of the same samples and draws is no state.
        step_seeds.seed(config, 0, 0)
        with python_effects(model, deep=True) as effects:
            run()
        changed += [each.removeprefix(CHANGES) for each in effects if each.startswith(CHANGES)]
        after = tensors()
        changed += [name for name, value in before.items() if name in after and not _same(value, after[name])]
    changed += [name for name, value in state.items() if not isinstance(value, Tensor)]
    if changed:
        key = "resume" if config.checkpoint_every is None else "checkpoint_every"
        raise ConfigError(
            f"{key}={getattr(config, key)}: the model keeps {changed[0]} of its steps, which checkpoints "
            "don't have: a run that goes on from one would train another model; keep it in a buffer that is "
            f"saved, or leave {key} away"
        )


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
