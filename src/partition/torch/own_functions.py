"""Find what no tracer of a forward pass sees: an own backward pass, and what Python itself does.

A graph has the operations of one forward pass. What the next one does otherwise, because Python has drawn or
counted, isn't in it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from src.models.torch.unchanged import unchanged
from src.partition.torch import user_lines
from src.partition.torch.user_lines import Line
from src.tasks.torch.outputs import model_outputs

HOOK, FUNCTION, CHANGES = "a hook of a tensor", "the autograd function ", "what changes "
PLAIN = (bool, int, float, str)
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
# How far it is looked into what modules hold: into a list of an object's, and no further.
DEPTH = 2
# Larger containers hold data.
MOST = 10_000
# The gradient of what computes its operations again is theirs, by definition, and that of an operator which
# `torch.library` has registered is known to graphs, too.
RECOMPUTES, OPERATOR = "CheckpointFunction", "GeneratedBackwardFor_"


def own_functions(outputs: Sequence[Tensor]) -> Counter[str]:
    """Return the autograd functions written in Python that have led to `outputs`, each with its number."""
    found: Counter[str] = Counter()
    seen: set[Any] = set()
    waiting: list[Any] = [tensor.grad_fn for tensor in outputs]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        function = getattr(type(node), "_forward_cls", None)
        if function is not None and not function.__name__.startswith((RECOMPUTES, OPERATOR)):
            found[f"{FUNCTION}{function.__name__}"] += 1
        waiting += [following for following, _ in node.next_functions]
    return found


@contextlib.contextmanager
def python_effects(model: nn.Module, *, deep: bool = False) -> Iterator[Counter[str]]:
    """Find what forward passes within the block change beside tensors; known at its end.

    Where it looks `deep` that is also what containers, generators and further objects hold that modules have:
    what a first pass makes, as a cache, isn't told there from a state that each one moves.
    """
    found: Counter[str] = Counter()
    before = _plain(model, deep=deep)
    states = _python_generators()
    yield found
    for name, value in _plain(model, deep=deep).items():
        known = before.get(name)
        if known != value and not (known != known and value != value):
            found[f"{CHANGES}{name}"] += 1
    if states != _python_generators():
        found["what draws Python's or NumPy's random numbers"] += 1


def _python_generators() -> object:
    """Return the states of Python's and NumPy's generators of random numbers."""
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, np.asarray(keys).tobytes(), rest


def _plain(model: nn.Module, *, deep: bool) -> dict[str, object]:
    """Return the numbers and texts that modules hold, by their names in the model."""
    return {name: read() for name, read in _reads(model, deep=deep)}


def _reads(model: nn.Module, *, deep: bool) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the names of what `_plain` returns, and functions that return what it is then."""
    for path, module in model.named_modules():
        held = vars(module)
        for name, value in list(held.items()):
            title = f"{path}.{name}".lstrip(".")
            if isinstance(value, PLAIN):
                yield title, functools.partial(held.get, name)
            elif deep:
                yield from _within(title, value, DEPTH)


def _within(title: str, value: object, depth: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the names and values of what a container or another object holds, and what that holds in turn."""
    if isinstance(value, GENERATORS):
        yield title, functools.partial(_state, value)
        return
    if not depth or isinstance(value, nn.Module | Tensor | type | FunctionType | ModuleType):
        return
    held: Any
    places: list[tuple[str, Any]]
    if isinstance(value, dict | list | tuple | deque) and len(value) > MOST:
        return
    if isinstance(value, dict):
        held, places = value, [(f"{title}[{key!r}]", key) for key in value]
    elif isinstance(value, list | tuple | deque):
        held, places = value, [(f"{title}[{place}]", place) for place in range(len(value))]
    elif hasattr(value, "__dict__"):
        held = vars(value)
        places = [(f"{title}.{name}", name) for name in held]
    else:
        return
    for name, place in places:
        if isinstance(held[place], PLAIN):
            yield name, functools.partial(_item, held, place)
        else:
            yield from _within(name, held[place], depth - 1)


def _item(held: Any, place: Any) -> object:
    try:
        return held[place]
    except LookupError:
        return None


def _state(generator: Any) -> object:
    """Return the state of a generator of random numbers, of torch's, NumPy's or Python's kind."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return repr(generator.get_state(legacy=False))
    return generator.getstate()


class TensorHooks(TorchFunctionMode):
    """Count the hooks that are registered on tensors within the block.

    Attributes:
        count: the hooks, each kind with its number.
        line: the line of the model's code that has registered the first one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.line: Line | None = None

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count what registers a hook; run everything."""
        if function in (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook):
            self.count[HOOK] += 1
            self.line = self.line or user_lines.of_caller(inspect.currentframe())
        return function(*args, **(kwargs or {}))


def of_model(model: nn.Module, inputs: Sequence[Tensor]) -> Counter[str]:
    """Return the autograd functions and hooks that a model uses for these inputs; leave it as it was."""
    with unchanged(model), TensorHooks() as hooks, torch.enable_grad():
        return own_functions(model_outputs(model(*inputs))) + hooks.count


def line_of(name: str, model: nn.Module, inputs: Sequence[Tensor]) -> Line | None:
    """Return the line of a model's code that is to blame for what was counted as `name`, if it is found.

    The model runs once more, and is left as it was.
    """
    with unchanged(model), TensorHooks() as hooks, torch.enable_grad():

        def run() -> None:
            model(*inputs)

        if name == HOOK:
            run()
            return hooks.line
        if name.startswith(FUNCTION):
            forward = f"{name.removeprefix(FUNCTION)}.forward"
            return user_lines.of_call(run, lambda frame: frame.f_code.co_qualname.endswith(forward))
        if name.startswith(CHANGES):
            return user_lines.of_change(run, _reader(model, name.removeprefix(CHANGES)))
        return user_lines.of_change(run, _python_generators)


def _reader(model: nn.Module, name: str) -> Callable[[], object]:
    """Return a function that returns what has a name in a model, which a pass may be the first to give it."""
    if (read := dict(_reads(model, deep=True)).get(name)) is not None:
        return read
    path, _, attribute = name.rpartition(".")
    modules = dict(model.named_modules())
    return functools.partial(vars(modules[path]).get, attribute) if path in modules else lambda: None
