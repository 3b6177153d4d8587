"""A model that can't be traced is refused with the line of the user's own code, the reason, and a way out."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.models.own_backward import Sign
from src.config import ConfigError
from src.partition.torch import comparison, user_lines
from src.partition.torch.comparison import CutDiffersError
from src.partition.torch.graph import operations
from src.tasks.torch.outputs import model_outputs


class Dense(nn.Module):
    """Dense layers, between which a subclass does something; its faulty line says `# here`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def between(self, hidden: Tensor) -> Tensor:
        return hidden

    def forward(self, values: Tensor) -> Tensor:
        return self.second(self.between(self.first(values)))


class Branches(Dense):
    def between(self, hidden: Tensor) -> Tensor:
        if hidden.sum() > 0:  # here
            hidden = -hidden
        return hidden


class Repeats(Dense):
    def between(self, hidden: Tensor) -> Tensor:
        while hidden.abs().mean() > 1:  # here
            hidden = hidden / 2
        return hidden


class Chooses(Dense):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden if bool((hidden > 0).all()) else -hidden  # here


class Counts(Dense):
    def between(self, hidden: Tensor) -> Tensor:
        times = int(hidden.abs().max())  # here
        for _ in range(times):
            hidden = hidden * 0.5
        return hidden


class Compares(Dense):
    def between(self, hidden: Tensor) -> Tensor:
        largest = hidden.abs().max().item()
        return hidden / max(largest, 1.0)  # here


class Numpy(Dense):
    def between(self, hidden: Tensor) -> Tensor:
        clipped = np.clip(hidden.detach().numpy(), -1, 1)  # here
        return hidden + torch.from_numpy(clipped)


class Rounded(Dense):
    def between(self, hidden: Tensor) -> Tensor:
        return Sign.apply(hidden)  # here


class TensorHook(Dense):
    def between(self, hidden: Tensor) -> Tensor:
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient * 0.5)  # here
        return hidden


class LayerHook(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.second.register_full_backward_hook(lambda _, given, __: (2 * given[0],))

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.first(values)
        return self.second(hidden)  # here


class OwnGenerator(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def between(self, hidden: Tensor) -> Tensor:
        return hidden + torch.randn(hidden.shape, generator=self.generator)  # here


class Scripted(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.part = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))

    def between(self, hidden: Tensor) -> Tensor:
        return self.part(hidden)  # here


class Sine(Dense):
    def forward(self, values: Tensor) -> Tensor:
        hidden = torch.sin(self.first(values))  # here
        return self.second(hidden)


@torch.library.custom_op("scaleguide_tests::twice", mutates_args=())
def twice(values: Tensor) -> Tensor:
    """An operator without a function for tensors that have no data."""
    return values * 2


class Operator(Dense):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden + twice(hidden.detach())  # here


class Compiled(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.part = torch.compile(torch.sin, backend="aot_eager")

    def between(self, hidden: Tensor) -> Tensor:
        return self.part(hidden)  # here


def marked(model: type[nn.Module]) -> str:
    """The file and line that a class marks, and the code that stands there."""
    lines, start = inspect.getsourcelines(model)
    (place,) = [number for number, line in enumerate(lines) if line.endswith("# here\n")]
    line = user_lines.Line(inspect.getfile(model), start + place)
    assert line.place.startswith("tests/partition/test_refusal.py:")
    return str(line)


DECIDE = "the data decide there which operations run"
NUMBER = "Python goes on there by a number that the data decide"


@pytest.mark.parametrize(
    ("model", "reason", "way"),
    [
        (Branches, DECIDE, "torch.where or torch.cond"),
        (Repeats, DECIDE, "torch.where or torch.cond"),
        (Chooses, DECIDE, "torch.where or torch.cond"),
        (Counts, NUMBER, "keep it in a tensor"),
        (Compares, NUMBER, "keep it in a tensor"),
        (Numpy, "NumPy computes there", "by torch's functions"),
        (Rounded, "would leave out the backward pass of the autograd function Sign", "register_autograd"),
        (TensorHook, "would leave out a hook of a tensor", "in the forward pass"),
        (LayerHook, "would leave out the hook of a layer's backward pass", "in the forward pass"),
        (OwnGenerator, "as one that draws by a generator of its own", "draw by torch's generator"),
        (Scripted, "torch.jit.script has made one piece of it", "leave that out"),
        (Operator, "what the operator scaleguide_tests::twice returns isn't known", "register_fake"),
        (Compiled, "torch.compile has made one piece of it", "leave that to strategy.compile"),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else "",
)
def test_a_refusal_names_the_line_of_the_users_code(model: type[nn.Module], reason: str, way: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(ConfigError) as refused:
        operations(model(), torch.randn(4, 8))
    said = str(refused.value)
    assert said.startswith(f"the model can't be cut: {marked(model)}: ") and "\n" not in said
    assert reason in said and way in said
    assert "nn.Sequential that has it within one link" in said and said.endswith(" single")


def failing(_: Tensor) -> Tensor:
    raise RuntimeError("not for so many")


def test_a_graph_that_does_not_run_names_the_line_that_asked_for_its_operation() -> None:
    graph = operations(Sine(), torch.randn(4, 8))
    (sine,) = graph.module.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)
    sine.target = failing
    with pytest.raises(ConfigError) as refused:
        graph.values(torch.randn(4, 8))
    said = (
        f"the model can't be cut: {marked(Sine)}: what was traced doesn't run on inputs of this size (not for"
    )
    assert str(refused.value).startswith(said)


def test_without_a_line_of_the_user_it_is_that_of_the_library(tmp_path: Path) -> None:
    files = [str(tmp_path / "site-packages/timm/layers/drop.py"), torch.__file__, str(tmp_path / "net.py")]
    trace = "".join(f'  File "{file}", line {place}, in forward\n' for place, file in enumerate(files, 1))
    graph = torch.fx.Graph()
    node = graph.placeholder("values")
    node.meta["stack_trace"] = trace
    assert str(user_lines.of_node(node)) == f"{tmp_path}/net.py:3"
    node.meta["stack_trace"] = trace.replace(files[2], str(user_lines.SOURCE / "partition" / "plan.py"))
    assert str(user_lines.of_node(node)) == "timm/layers/drop.py:1"
    assert user_lines.of_node(graph.placeholder("more")) is None


@torch.library.custom_op("scaleguide_tests::sign", mutates_args=())
def sign(values: Tensor) -> Tensor:
    """The sign, whose gradient is passed on as it is."""
    return values.sign()


sign.register_fake(torch.empty_like)
sign.register_autograd(lambda _, gradient: gradient)


class Registered(Dense):
    def between(self, hidden: Tensor) -> Tensor:
        return sign(hidden)


def check(model: nn.Module) -> int:
    torch.manual_seed(0)
    inputs = torch.randn(4, 8)
    graph = operations(model, inputs)
    comparison.check(model, graph, inputs, model_outputs, lambda outputs: outputs[0].square().sum())
    return len(graph.operations)


def test_the_way_out_of_an_own_backward_pass_is_one() -> None:
    assert check(Registered()) == 3


class Draws(Dense):
    def between(self, hidden: Tensor) -> Tensor:
        scale = 1.0
        if random.random() < 0.5:  # here
            scale = 2.0
        return hidden * scale


class DrawsNumpy(Dense):
    def between(self, hidden: Tensor) -> Tensor:
        scale = 1 + np.random.rand()  # here
        return hidden * scale


class CountsSteps(Dense):
    steps = 0

    def between(self, hidden: Tensor) -> Tensor:
        self.steps += 1  # here
        return hidden * self.steps


class Appends(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def between(self, hidden: Tensor) -> Tensor:
        self.seen.append(hidden.detach().mean())  # here
        return hidden + torch.stack(self.seen).mean()


class FirstData(Dense):
    centre: Tensor | None = None

    def between(self, hidden: Tensor) -> Tensor:
        if self.centre is None:
            self.centre = hidden.detach().mean()  # here
        return hidden - self.centre


@pytest.mark.parametrize("model", [Draws, DrawsNumpy, CountsSteps, Appends, FirstData])
def test_what_stages_do_not_do_is_named_with_its_line(model: type[nn.Module]) -> None:
    with pytest.raises(CutDiffersError) as refused:
        check(model())
    assert str(refused.value).endswith(f", as is done at {marked(model)}")


class Logs(Dense):
    """Keeps a number of each step, which nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def between(self, hidden: Tensor) -> Tensor:
        self.seen.append(hidden.detach().mean())
        return hidden


class Tables(Dense):
    """Makes tables at the first step that needs them."""

    row: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[int, Tensor] = {}

    def between(self, hidden: Tensor) -> Tensor:
        width = hidden.shape[1]
        if width not in self.tables:
            self.tables[width] = torch.arange(width, dtype=torch.float32)
        if self.row is None:
            self.row = torch.ones(width)
        return hidden + self.tables[width] * self.row


@pytest.mark.parametrize("model", [Logs, Tables])
def test_what_no_data_decide_and_what_nobody_reads_may_be_kept(model: type[nn.Module]) -> None:
    assert check(model()) >= 2


class Selects(Dense):
    """Leaves rows out, as the data say."""

    def between(self, hidden: Tensor) -> Tensor:
        rows = torch.nonzero(hidden[:, 0] > -0.1).squeeze(1)
        return hidden + torch.tanh(hidden[rows]).sum()


def test_no_cut_is_where_the_data_decide_a_shape() -> None:
    torch.manual_seed(0)
    graph = operations(Selects(), torch.randn(4, 8))

    def crossing() -> Iterator[Any]:
        yield from (node for live in graph.live[:-1] for node in live)

    assert {node.name for node in crossing()} >= {"linear", "gt"}
    assert not {node.name for node in crossing()} & {"nonzero", "squeeze", "index", "tanh"}
    assert check(Selects()) > 3
