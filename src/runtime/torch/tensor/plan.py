"""Plan which layers are split among ranks, and how: as the user says, or the model, or its graph.

A plan names layers by their paths, in which `*` stands for any one name, and says of each a word of
`styles.STYLES`. Whatever it names no layer for stays whole on every rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from src.config import ConfigError
from src.config.mistakes import nearest
from src.config.run_config import StrategyOptions
from src.runtime.torch.tensor import sequence, styles
from src.runtime.torch.tensor.group import TensorGroup

# A model that transformers has a plan for says so itself, by its layers' paths.
ATTRIBUTE = "_tp_plan"


@dataclass(frozen=True, kw_only=True)
class TensorOptions(StrategyOptions):
    """The options of a strategy that splits layers."""

    plan: str | Sequence[str]
    sequence_parallel: bool


@dataclass(frozen=True)
class Plan:
    """A plan of one model.

    Attributes:
        source: who says so, for messages.
        words: how each layer is split, by its path.
        ranks: how many share the model.
        sequence: whether each has a part of the tokens where layers aren't split.
    """

    source: str
    words: Mapping[str, str]
    ranks: int
    sequence: bool = False

    def show(self, model: nn.Module) -> str:
        """Return the plan as text, a line for all layers whose paths differ in numbers alone."""
        layers: dict[tuple[str, str], list[str]] = {}
        for name, word in self.words.items():
            layers.setdefault((re.sub(r"\b\d+\b", "*", name), word), []).append(name)
        held = [model.get_submodule(name) for name in self.words]
        split = {id(each): each.numel() for module in held for each in module.parameters()}
        total = sum(parameter.numel() for parameter in model.parameters())
        share = 100 * sum(split.values()) / total
        lines = [f"layers are split by {self.source}; they have {share:.0f} % of the parameters:"]
        lines += [
            f"  {names[0]}: {word}" if len(names) == 1 else f"  {path}: {word} ({len(names)} layers)"
            for (path, word), names in layers.items()
        ]
        lines += ["between them each worker has a part of the tokens"] * self.sequence
        return "\n".join(lines)


def parallelize(model: nn.Module, plan: Plan, group: TensorGroup) -> None:
    """Split the layers that a plan names among a group's ranks, in place.

    Their parameters become DTensors, of which the rank has its part; between layers there are plain tensors.
    All ranks have the same whole model before. Buffers and other parameters stay as they are.

    Raises:
        ConfigError: where tokens are to be divided, too, and the model has no blocks for that.
    """
    for name, word in plan.words.items():
        split, _, _ = styles.STYLES[word]
        split(model.get_submodule(name), group)
    if plan.sequence:
        sequence.divide(model, plan.words, group)
    group.forget()


def typed(entries: Sequence[str], model: nn.Module, ranks: int) -> Plan:
    """Return the plan that a user has typed, as `[layers.*.w1:colwise,layers.*.w2:rowwise]`.

    Raises:
        ConfigError: for an entry of another form; otherwise as `resolve`.
    """
    words: dict[str, str] = {}
    for entry in entries:
        path, colon, word = str(entry).rpartition(":")
        if not colon or not path:
            raise ConfigError(f"strategy.plan={entry}: must be PATH:HOW, as layers.*.w1:{styles.COLWISE}")
        words[path] = word
    return resolve("strategy.plan", words, model, ranks)


def resolve(
    source: str, words: Mapping[str, str], model: nn.Module, ranks: int, *, lenient: bool = False
) -> Plan:
    """Return the plan of a model by words for paths with wildcards; what shares a split weight is split, too.

    Args:
        source: who says so.
        words: how layers are split, by path.
        model: the whole model.
        ranks: how many share it.
        lenient: whether paths of no layer are passed over, as where they are those of a whole architecture.

    Raises:
        ConfigError: for a path that names no layer, a word that there isn't, or a layer that can't be split
            so.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    found: dict[str, str] = {}
    for path, word in words.items():
        if word not in styles.STYLES:
            raise ConfigError(
                f"strategy.plan: {path} is to be {word} by {source}; it may be {', '.join(styles.STYLES)}; "
                f"did you mean {nearest(word, styles.STYLES)}?"
            )
        named = [name for name in modules if name and _matches(name, path)]
        if not named and not lenient:
            known = sorted(
                name for name, each in modules.items() if isinstance(each, nn.Linear | nn.Embedding)
            )
            hint = f"; did you mean {nearest(path, known)}?" if known else ""
            raise ConfigError(f"strategy.plan: {path} names no layer of the model{hint}")
        found |= dict.fromkeys(named, word)
    if not found:
        raise ConfigError(f"strategy.plan: none of the paths of {source} names a layer of the model")
    for name, word in found.items():
        styles.check(name, modules[name], word, ranks)
    return Plan(source, found | _tied(found, modules, ranks), ranks)


def _matches(name: str, path: str) -> bool:
    parts, patterns = name.split("."), path.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def _tied(found: Mapping[str, str], modules: Mapping[str, nn.Module], ranks: int) -> dict[str, str]:
    """Return how layers are split that share a weight with one that is; refuse what can't be."""
    words = {id(modules[name].weight): word for name, word in found.items() if word != styles.SUMMED}
    further: dict[str, str] = {}
    for name, module in modules.items():
        for own, parameter in module.named_parameters(recurse=False):
            if name in found or id(parameter) not in words:
                continue
            by_rows = words[id(parameter)] in (styles.COLWISE, styles.JOINED, styles.VOCABULARY)
            word = styles.VOCABULARY if isinstance(module, nn.Embedding) else styles.JOINED
            if not by_rows or own != "weight" or not isinstance(module, nn.Embedding | nn.Linear):
                raise ConfigError(
                    f"strategy.plan: {name} shares a weight with a layer that is {words[id(parameter)]}, and "
                    "isn't in the plan; name both or neither"
                )
            styles.check(name, module, word, ranks)
            further[name] = word
    return further
