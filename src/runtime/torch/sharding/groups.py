"""Divide a model's modules into groups, each of whose parameters are gathered together."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from src.config import ConfigError
from src.config.mistakes import nearest
from src.partition import balance

# Groups of a model by default, and the bytes below which a group isn't worth an exchange.
MOST, LEAST_BYTES = 16, 2**20


@dataclass(frozen=True)
class Group:
    """Modules whose parameters are gathered together.

    Attributes:
        modules: their names, in the model's order; the model's own is empty.
        bytes: of all their parameters.
    """

    modules: tuple[str, ...]
    bytes: int


def named(model: nn.Module, gatherable: Collection[str], names: Sequence[str]) -> list[Group]:
    """Return groups of one module each, by their `names`; what is in none is gathered for the whole step.

    Args:
        model: the whole model.
        gatherable: names of the modules that can be gathered by themselves.
        names: those of the groups' modules.

    Raises:
        ConfigError: for a name that the model doesn't have, or of a module that can't be a group.
    """
    modules = dict(model.named_modules())
    for name in names:
        _check(name, modules, gatherable)
    for one, other in itertools.permutations(names, 2):
        if one == other or other.startswith(f"{one}."):
            raise ConfigError(f"strategy.groups: {other} lies within {one}; name one of them")
    return [Group((name,), _bytes(modules[name])) for name in names]


def equal(model: nn.Module, gatherable: Collection[str], mean: float | None = None) -> list[Group]:
    """Return groups of about as many bytes each; what is in none is gathered for the whole step.

    Args:
        model: the whole model.
        gatherable: names of the modules that can be gathered by themselves.
        mean: bytes of a group, by default a sixteenth of the model's, but 1 MiB at least.
    """
    modules, total = dict(model.named_modules()), _bytes(model)
    count = max(1, round(total / (mean or max(total / MOST, LEAST_BYTES))))
    units = list(_units("", model, gatherable, total / count))
    count = min(count, len(units))
    if not count:
        return []
    sizes = np.array([_bytes(modules[name]) for name in units], dtype=float)
    nothing = np.zeros(len(units) + 1)
    problem = balance.Problem(
        cost=sizes,
        crossing=nothing,
        sent=nothing,
        weights=nothing[1:],
        kept=nothing[1:],
        speeds=[1.0] * count,
        in_flight=[1] * count,
    )
    largest = balance.costliest(problem, balance.best(problem))
    # Fewer groups that are no larger are fewer exchanges.
    groups: list[Group] = []
    for name, size in zip(units, sizes.astype(int).tolist(), strict=True):
        if groups and groups[-1].bytes + size <= largest:
            groups[-1] = Group((*groups[-1].modules, name), groups[-1].bytes + size)
        else:
            groups.append(Group((name,), size))
    return groups


def _units(name: str, module: nn.Module, gatherable: Collection[str], target: float) -> Iterator[str]:
    """Yield the names of the largest modules within one of at most `target` bytes, and of larger leaves."""
    size = _bytes(module)
    if not size:
        return
    fits = name != "" and name in gatherable
    children = [(key, child) for key, child in module.named_children() if _bytes(child)]
    if fits and (size <= target or not children):
        yield name
        return
    found = [
        unit
        for key, child in children
        for unit in _units(f"{name}.{key}" if name else key, child, gatherable, target)
    ]
    if fits and not found:
        yield name
        return
    yield from found


def _bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


def _check(name: str, modules: dict[str, nn.Module], gatherable: Collection[str]) -> None:
    """Raise `ConfigError` unless a user's `name` is that of a module that can be a group."""
    if name not in modules:
        raise ConfigError(
            f"strategy.groups: the model has no module {name}; did you mean {nearest(name, list(modules))}?"
        )
    if not _bytes(modules[name]):
        raise ConfigError(f"strategy.groups: {name} has no parameters")
    if name not in gatherable:
        raise ConfigError(
            f"strategy.groups: {name} can't be gathered by itself: it isn't called exactly once in a pass, "
            "or its parameters are used outside of it, too; leave it out, and it is gathered with the rest"
        )


def show(groups: Sequence[Group], total: int) -> str:
    """Return the groups as text, a line each.

    Args:
        groups: of the model.
        total: bytes of the model's parameters.
    """
    lines = [f"parameters gathered in {len(groups)} groups" + (":" if groups else "")]
    for group in groups:
        names = group.modules
        span = names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]}"
        lines.append(f"  {span}: {group.bytes / 2**20:.2f} MiB")
    if rest := total - sum(group.bytes for group in groups):
        lines.append(f"  the rest, for the whole step: {rest / 2**20:.2f} MiB")
    return "\n".join(lines)
