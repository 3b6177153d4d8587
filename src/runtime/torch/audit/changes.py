"""Change one thing in a rank of an audited run, so that a cause of a difference can be tested.

Which changes these are is in the configuration (`Config.audit`). Each makes runs on one and on several
devices equal if it alone had them differ, and leaves both the same otherwise.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from src.compat.torch import BatchNorm
from src.config import Config

FREEZE_BATCHNORM = "freeze_batchnorm"
DROPOUT_OFF = "dropout_off"
CONSTANT_DRAWS = "constant_draws"
SAME_GENERATORS = "same_generators"
ZERO_GRADIENTS = "zero_gradients"
UNDO_STATE = "undo_state"

# Functions of torch.nn.functional that return their input where nothing is dropped.
DROPPING = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
    "feature_dropout",
)
DROPPED = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
# What a module may keep a state in, beside its buffers.
COPIED = (bool, int, float, str, list, dict, Tensor)
# Attributes of every module's.
TORCHS = set(vars(nn.Module()))
# Types of generators that are seeded by a method of that name.
LEGACY = (np.random.RandomState, random.Random)
# Whether the model is being built, when it draws its weights as ever.
_building = False
# The generators that a model has made for itself, where they are to draw alike.
_generators: list[Any] = []


def enter(config: Config) -> None:
    """Change the process before anything is built, as the configuration says."""
    if config.audit is None:
        return
    if config.audit["precision"] == "fp64":
        torch.set_default_dtype(torch.float64)
        _stay_sharp()
    if DROPOUT_OFF in config.changes or CONSTANT_DRAWS in config.changes:
        _drop_nothing()
    if CONSTANT_DRAWS in config.changes:
        _draw_constants()
    if SAME_GENERATORS in config.changes:
        _seed_alike()


@contextlib.contextmanager
def building() -> Iterator[None]:
    """Have a model that is built within the block draw its weights as in any run."""
    global _building
    before, _building = _building, True
    try:
        yield
    finally:
        _building = before


def apply(config: Config, model: nn.Module) -> None:
    """Change a model that was just built, as the configuration says."""
    if config.audit is None:
        return
    if config.audit["precision"] == "fp64":
        model.double()
    for layer in model.modules():
        if FREEZE_BATCHNORM in config.changes and isinstance(layer, BatchNorm):
            layer.eval()
        if DROPOUT_OFF in config.changes or CONSTANT_DRAWS in config.changes:
            if isinstance(layer, DROPPED):
                layer.p = 0.0
            elif isinstance(layer, nn.RNNBase | nn.MultiheadAttention):
                layer.dropout = 0.0


def _stay_sharp() -> None:
    """Have numbers of float64 stay so where a model asks for those of float32, as some do for a loss."""
    own_float, own_to, own_type = Tensor.float, Tensor.to, Tensor.type
    kinds = {torch.float32: torch.float64}

    def sharp(value: Any) -> Any:
        return kinds.get(value, value) if isinstance(value, torch.dtype) else value

    def stay(tensor: Tensor, *more: Any, **named: Any) -> Tensor:
        return tensor if tensor.dtype == torch.float64 else own_float(tensor, *more, **named)

    def to(tensor: Tensor, *more: Any, **named: Any) -> Tensor:
        if tensor.dtype == torch.float64:
            more = tuple(sharp(each) for each in more)
            named = {key: sharp(value) for key, value in named.items()}
        return own_to(tensor, *more, **named)

    def as_type(tensor: Tensor, *more: Any, **named: Any) -> Any:
        if tensor.dtype == torch.float64:
            more = tuple(sharp(each) for each in more)
        return own_type(tensor, *more, **named)

    Tensor.float, Tensor.to, Tensor.type = stay, to, as_type  # type: ignore[method-assign, assignment]


def _drop_nothing() -> None:
    """Have torch's functions of dropout return what they are given."""
    for owner in (functional, torch):
        for name in DROPPING:
            if hasattr(owner, name):
                setattr(owner, name, _unchanged)
    attend = functional.scaled_dot_product_attention

    def attend_to_all(query: Tensor, key: Tensor, value: Tensor, *more: Any, **named: Any) -> Tensor:
        mask, _, *rest = (*more, None, None)[: max(2, len(more))]
        if len(more) > 1:
            more = (mask, 0.0, *rest)
        named = {**named, "dropout_p": 0.0} if len(more) < 2 else named
        return attend(query, key, value, *more, **named)

    functional.scaled_dot_product_attention = attend_to_all


def _unchanged(input: Tensor, *_: Any, **__: Any) -> Tensor:
    return input


def _draw_constants() -> None:
    """Have torch's functions that draw random numbers return what they would on average."""
    of_shape: dict[str, float] = {"rand": 0.5, "randn": 0.0}
    for name, value in of_shape.items():
        _replace(torch, name, lambda *size, _value=value, **named: _full(size, _value, named))
        _replace(torch, f"{name}_like", lambda input, _value=value, **named: torch.full_like(input, _value))
    _replace(torch, "randint", lambda *arguments, **named: _integers(arguments, named))
    _replace(torch, "randperm", lambda count, **named: torch.arange(count, device=named.get("device")))
    for owner in (torch, Tensor):
        _replace(owner, "bernoulli", lambda input, *_, **__: input.clone())
        _replace(owner, "multinomial", _likeliest)
    _replace(torch, "poisson", lambda input, *_, **__: input.clone())
    for owner in (functional, torch):
        # Its slope in evaluation is the mean of those that it draws.
        _replace(owner, "rrelu", lambda input, lower=1 / 8, upper=1 / 3, *_, **__: functional.leaky_relu(
            input, (lower + upper) / 2))  # fmt: skip
    for name, value in {"rand": 0.5, "random_sample": 0.5, "randn": 0.0}.items():
        _replace(np.random, name, lambda *size, _value=value: np.full(size, _value) if size else _value)
    for name, mean in {
        "random": lambda size=None: (0.5, size),
        "standard_normal": lambda size=None: (0.0, size),
        "uniform": lambda low=0.0, high=1.0, size=None: ((low + high) / 2, size),
        "normal": lambda loc=0.0, scale=1.0, size=None: (loc, size),
        "binomial": lambda n, p, size=None: (n * p, size),
    }.items():
        _replace(np.random, name, lambda *given, _mean=mean, **named: _filled(*_mean(*given, **named)))
    _replace(torch, "normal", lambda mean, *_, **__: mean + torch.zeros(()) if _is_tensor(mean) else mean)
    within: dict[str, Callable[..., float | Tensor]] = {
        "uniform_": lambda low=0.0, high=1.0, **named: (named.get("from", low) + named.get("to", high)) / 2,
        "normal_": lambda mean=0.0, *_, **__: mean,
        "exponential_": lambda lambd=1.0, **_: 1 / lambd,
        "bernoulli_": lambda p=0.5, **_: p,
        "log_normal_": lambda *_, **__: 1.0,
        "cauchy_": lambda median=0.0, *_, **__: median,
        "geometric_": lambda p, **_: 1 / p,
        "random_": lambda *_, **__: 0,
    }
    for name, value_of in within.items():
        _replace(
            Tensor, name, lambda tensor, *given, _of=value_of, **named: _fill(tensor, _of(*given, **named))
        )


def _likeliest(input: Tensor, num_samples: int, *_: Any, **__: Any) -> Tensor:
    return input.topk(num_samples, -1).indices


def _filled(mean: Any, size: Any) -> Any:
    """Return numbers of NumPy's that all are a mean."""
    return mean if size is None else np.broadcast_to(mean, size).copy()


def _fill(tensor: Tensor, value: float | Tensor) -> Tensor:
    return tensor.copy_(value.expand_as(tensor)) if isinstance(value, Tensor) else tensor.fill_(value)


def _full(size: tuple[Any, ...], value: float, named: dict[str, Any]) -> Tensor:
    shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    kept = {key: named[key] for key in ("dtype", "device") if key in named}
    return torch.full(tuple(named.get("size", shape)), value, **kept)


def _integers(arguments: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    """Return the middle of the numbers that `torch.randint` would draw, in its shape."""
    numbers = [each for each in arguments if isinstance(each, int)]
    size = named.get("size") or next(each for each in arguments if not isinstance(each, int))
    high = named.get("high", numbers[-1] if numbers else 1)
    low = named.get("low", numbers[0] if len(numbers) > 1 else 0)
    return torch.full(tuple(size), (low + high) // 2, dtype=torch.int64, device=named.get("device"))


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _replace(owner: Any, name: str, constant: Callable[..., Any]) -> None:
    """Have a function of torch's draw constants, but not while a model is built."""
    own = getattr(owner, name)

    def draw(*arguments: Any, **named: Any) -> Any:
        return own(*arguments, **named) if _building else constant(*arguments, **named)

    setattr(owner, name, draw)


def _seed_alike() -> None:
    """Have a model's own generators of random numbers be remembered, so that `reseed` knows them."""
    make = np.random.default_rng

    def default_rng(*arguments: Any, **named: Any) -> np.random.Generator:
        _generators.append(made := make(*arguments, **named))
        return made

    np.random.default_rng = default_rng
    for owner, name in ((np.random, "RandomState"), (random, "Random"), (torch, "Generator")):
        setattr(owner, name, _remembering(getattr(owner, name)))
    own = torch.manual_seed
    torch.manual_seed = lambda seed: own(seed if _building else 0)


def _remembering(kind: type) -> type:
    """Return a class that makes generators of a kind and remembers them; all of those are its instances."""

    class Alike(type(kind)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, kind)

    class Remembering(kind, metaclass=Alike):
        def __new__(cls, *arguments: Any, **named: Any) -> Any:
            made: Any = kind(*arguments, **named) if cls is Remembering else super().__new__(cls)
            _generators.append(made)
            return made

    return Remembering


def reseed(step: int) -> None:
    """Have the model's own generators draw alike in every process in a step, where an audit asks for that."""
    for generator in _generators:
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(step).state
        elif isinstance(generator, LEGACY):
            generator.seed(step)
        else:
            generator.manual_seed(step)


def fill_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Give each parameter of an optimizer that has no gradient one of zeros."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


@contextlib.contextmanager
def state_kept(config: Config, model: nn.Module) -> Iterator[None]:
    """Put back within the block's end what `model` keeps from one forward pass to the next, if asked for.

    Those are buffers, but BatchNorm's, and Python attributes. The model works on copies of its buffers, of
    which the backward pass may keep some.
    """
    if UNDO_STATE not in config.changes:
        yield
        return
    kept = []
    for module in model.modules():
        own = {} if isinstance(module, BatchNorm) else dict(module.named_buffers(recurse=False))
        plain = {name: value for name, value in vars(module).items() if is_own(name, value)}
        kept.append((module, own | {name: copied(value) for name, value in plain.items()}, set(vars(module))))
        for name, buffer in own.items():
            setattr(module, name, buffer.clone())
    try:
        yield
    finally:
        for module, values, names in kept:
            for name in set(vars(module)) - names:
                delattr(module, name)
            for name, value in values.items():
                setattr(module, name, value)


def is_own(name: str, value: object) -> bool:
    """Return whether a module's attribute is its author's, and of a type in which a state may be kept."""
    return name not in TORCHS and isinstance(value, COPIED)


def copied(value: Any) -> Any:
    """Return a copy of a plain value, with copies of the tensors in it."""
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, list):
        return [copied(each) for each in value]
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return value
