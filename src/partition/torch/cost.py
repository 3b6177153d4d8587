"""Measure the cost of each operation of a torch model on its device, and of transfers between ranks."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, fx
from torch.func import functional_call

from src.models.torch.unchanged import unchanged
from src.partition.model_profile import Costs, Link
from src.partition.torch import transfer
from src.partition.torch.graph import Graph
from src.partition.torch.saved_tensors import SavedStorages, saved_storages
from src.partition.torch.simulation import Inputs, RunNodes, State, Tensors, simulate, tensors
from src.tasks.torch.outputs import autocast

ROUNDS = 7
LEAST_ROUNDS = 3
ROUND_SECONDS = 10.0
LINK_BYTES = (4 * 2**10, 4 * 2**20)
LINK_ROUNDS = 11


def costs(graph: Graph, inputs: Inputs, *, precision: str = "fp32", splits: bool = False) -> Costs:
    """Measure the costs of every operation by itself.

    `inputs` are those of a micro-batch [batch, ...]. Weights and buffers are left as they were, and
    no gradients remain. Backward passes for inputs are measured apart if the schedule `splits` them off.
    """
    forward, for_inputs, backward = seconds(graph, inputs, precision=precision, splits=splits)
    counts, sizes = weights(graph)
    kept = kept_bytes(graph, inputs, precision=precision)
    return Costs(forward + backward, counts, sizes, kept, forward, for_inputs if splits else None)


def seconds(graph: Graph, inputs: Inputs, *, precision: str = "fp32", splits: bool = False) -> np.ndarray:
    """Measure the median seconds of each operation's passes, array [3, operations].

    They are the forward pass, the backward pass for inputs (zeros unless `splits`), and the whole backward
    pass. Gradients are accumulated, as they are from the second micro-batch on.
    """
    rounds: list[np.ndarray] = []
    started = time.perf_counter()
    with unchanged(graph.module):
        # The first round fills caches and makes the gradients that the other rounds add to.
        given, device = tensors(inputs), tensors(inputs)[0].device
        passes(graph, given, lambda: _now(device), precision=precision, splits=splits)
        while len(rounds) < ROUNDS:
            if len(rounds) >= LEAST_ROUNDS and time.perf_counter() - started > ROUND_SECONDS:
                break
            spans = passes(graph, given, lambda: _now(device), precision=precision, splits=splits)
            rounds.append(spans[..., 1] - spans[..., 0])
    graph.module.zero_grad()
    medians: np.ndarray = np.median(np.stack(rounds), axis=0)
    return medians


def passes(
    graph: Graph,
    inputs: Tensors,
    clock: Callable[[], float],
    *,
    precision: str = "fp32",
    splits: bool = False,
    interpreter: type[fx.Interpreter] = fx.Interpreter,
) -> np.ndarray:
    """Run all operations once, forward and backward, and return when each pass began and ended.

    Args:
        graph: the operations.
        inputs: those of a micro-batch [samples, ...].
        clock: tells the moment.
        precision: that of the training, `fp32` or `bf16`.
        splits: whether backward passes for inputs are run apart, before whole ones.
        interpreter: runs the graph's nodes.

    Returns an array [3, operations, 2], of passes as `seconds` has them; zeros for those that aren't run.
    """
    runner, device = interpreter(graph.module), inputs[0].device
    known: dict[fx.Node, Tensor] = dict(zip(graph.live[0], inputs, strict=True))
    found = np.zeros((3, len(graph.operations), 2))
    for place, operation in enumerate(graph.operations):
        own = set(operation.nodes)
        read = [node for node in graph.live[place] if any(user in own for user in node.users)]
        runner.env = {node: known[node].detach().requires_grad_(known[node].requires_grad) for node in read}
        start = clock()
        with torch.enable_grad(), autocast(precision, device):
            for node in operation.nodes:
                runner.env[node] = runner.run_node(node)
        found[0, place] = start, clock()
        made = [node for node in graph.live[place + 1] if node in own]
        roots = [runner.env[node] for node in made if runner.env[node].requires_grad]
        gradients = [torch.ones_like(root) for root in roots]
        given = [each for each in (runner.env[node] for node in read) if each.requires_grad]
        start = clock()
        if splits and roots and given:
            torch.autograd.backward(roots, gradients, retain_graph=True, inputs=given)
            found[1, place] = start, clock()
            # The whole pass is to make these anew.
            for each in given:
                each.grad = None
        start = clock()
        if roots:
            torch.autograd.backward(roots, gradients)
        found[2, place] = start, clock()
        known |= {
            node: runner.env[node].detach().requires_grad_(runner.env[node].requires_grad) for node in made
        }
        known = {node: known[node] for node in graph.live[place + 1]}
    return found


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def weights(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Return each operation's parameters and their bytes; shared ones count where they are first used."""
    seen: set[int] = set()
    counts, sizes = np.zeros((2, len(graph.operations)))
    for place, operation in enumerate(graph.operations):
        for tensor in graph.tensors(operation):
            if isinstance(tensor, torch.nn.Parameter) and id(tensor) not in seen:
                seen.add(id(tensor))
                counts[place] += tensor.numel()
                sizes[place] += tensor.nbytes
    return counts, sizes


def kept_bytes(graph: Graph, inputs: Inputs, *, precision: str = "fp32") -> np.ndarray:
    """Return the bytes that each operation keeps for backward, array [operations], without weights.

    The graph runs on tensors without data. A tensor that two operations keep counts for the first one.
    """
    places = {node: place for place, operation in enumerate(graph.operations) for node in operation.nodes}
    nodes = RunNodes(graph.module)

    def run(state: State, given: Tensors) -> SavedStorages:
        with saved_storages(nodes, state.values(), lambda: nodes.node) as saved:
            functional_call(nodes, state, given)
        # They hold autograd's graph, which holds `place`, and so would hold the whole model for good.
        nodes.results.clear()
        return saved

    saved = simulate(nodes, tensors(inputs), run, precision=precision)
    sizes = np.zeros(len(graph.operations))
    for node, storage in saved.values():
        sizes[places[node]] += storage.nbytes()
    return sizes


def link(device: torch.device, ranks: tuple[int, int] = (0, 1)) -> Link:
    """Measure a transfer between two `ranks`, there and back.

    Collective: every rank calls it, and gets a link that costs nothing if it is neither.
    """
    rank, medians = dist.get_rank(), []
    other = ranks[0] if rank == ranks[1] else ranks[1]
    for size in LINK_BYTES:
        tensor = torch.zeros(size, dtype=torch.uint8, device=device)
        taken = []
        for _ in range(LINK_ROUNDS if rank in ranks else 0):
            start = _now(device)
            for sender in ranks:
                if rank == sender:
                    work, _ = transfer.isend(tensor, other)
                    work.wait()
                else:
                    transfer.recv(tensor, other)
            taken.append((_now(device) - start) / 2)
        medians.append(float(np.median(taken)) if taken else 0.0)
    per_byte = max(0.0, medians[1] - medians[0]) / (LINK_BYTES[1] - LINK_BYTES[0])
    return Link(max(0.0, medians[0] - LINK_BYTES[0] * per_byte), per_byte)
