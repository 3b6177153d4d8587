"""Say in one line why a model can't be traced: the line of its code, the reason, and the ways out."""

from __future__ import annotations

import re

import torch
from torch import nn

from src.config import choices
from src.partition.torch.own_functions import FUNCTION, HOOK
from src.partition.torch.user_lines import Line, innermost, of_error

# These say what torch says of an operation, what it means, and what may be done in its place.
REASONS = (
    (
        r"\.numpy\(\) is not supported",
        "NumPy computes there, which a graph of torch's operations can't hold",
        "compute it by torch's functions",
    ),
    (
        r"no fake impl registered for <CustomOpDef\(([\w:]+)\)>",
        r"the shape of what the operator \1 returns isn't known before it runs",
        "register a function for it by `register_fake`",
    ),
    (
        r"SymIntArrayRef expected to contain only concrete integers",
        "a function there takes no shape that depends on the batch's size, as one that draws by a generator "
        "of its own doesn't",
        "draw by torch's generator",
    ),
)
BRANCH = re.compile(r"(if|elif|while|assert)\b|.*\bif\b")


# What no graph shows is said so, by the beginning of its name.
OWN = {
    f"{FUNCTION}CompiledFunction": (
        "torch.compile has made one piece of it",
        "leave that to strategy.compile",
    ),
    f"{FUNCTION}BackwardHookFunction": (
        "a graph would leave out the hook of a layer's backward pass",
        "change gradients in the forward pass",
    ),
    FUNCTION: (
        "a graph would leave out the backward pass of {name}",
        "make it an operator by torch.library.custom_op and register_autograd",
    ),
    HOOK: ("a graph would leave out {name}", "change the gradient in the forward pass"),
}


class LeftOutError(Exception):
    """Something of a model that no graph has: its name among `own_functions`, and the line that has it."""

    def __init__(self, name: str, line: Line | None) -> None:
        super().__init__(name)
        self.name = name
        self.line = line


def refusal(model: nn.Module, error: Exception) -> str:
    """Return the line by which a model is refused of which `error` was raised while it was traced."""
    line, reason, way = _found(model, error)
    ways = [
        *filter(None, [way]),
        "make the model an nn.Sequential that has it within one link",
        keep_whole(),
    ]
    where = "" if line is None else f"{line}: "
    return f"the model can't be cut: {where}{reason}; {', '.join(ways[:-1])}, or {ways[-1]}"


def keep_whole() -> str:
    """Return the way out that there is for every model."""
    return f"choose a strategy that keeps the model whole: {', '.join(choices.whole_model_strategies())}"


def _found(model: nn.Module, error: Exception) -> tuple[Line | None, str, str]:
    """Return the line of the user's code, the reason, and what may be done about it."""
    if isinstance(error, LeftOutError):
        reason, way = next(said for start, said in OWN.items() if error.name.startswith(start))
        return error.line, reason.format(name=error.name), way
    line = of_error(error)
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        return line or _scripted(model), "torch.jit.script has made one piece of it", "leave that out"
    said = str(error).strip() or type(error).__name__
    if "data-dependent" in said:
        if line is not None and BRANCH.match(line.code):
            way = "choose between values by torch.where or torch.cond"
            return (
                line,
                "the data decide there which operations run, and a graph has the same ones always",
                way,
            )
        way = "keep it in a tensor"
        return line, "Python goes on there by a number that the data decide, which no graph has", way
    for pattern, reason, way in REASONS:
        if match := re.search(pattern, said):
            return line, match.expand(reason), way
    # Where in torch's own sources an error was raised says nothing to the user.
    first = re.sub(r"^/\S+: ", "", said.splitlines()[0])
    return line, f"torch.export can't trace it ({first})", ""


def _scripted(model: nn.Module) -> Line | None:
    """Return a line of the user's that torch.jit.script has compiled, if there is one."""
    for part in model.modules():
        if isinstance(part, torch.jit.ScriptModule):
            # The graph has lines in comments.
            written = re.findall(r"# (\S+\.py):(\d+):", str(part.inlined_graph))
            if line := innermost(Line(file, int(number)) for file, number in written):
                return line
    return None
