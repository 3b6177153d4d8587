"""A group of ranks that all do what this one does: what its calls return, and what is told of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from src.compat.alike_ranks import alike_ranks, others_are_there

RANKS = 8


class Told:
    """What a group has told: (kind, bytes, ranks), or ("wait", call, 0)."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, int]] = []

    def begin(self) -> None:
        pass

    def exchanged(self, kind: str, size: int, ranks: int) -> int:
        self.rows.append((kind, size, ranks))
        return len(self.rows)

    def waited(self, number: int) -> None:
        self.rows.append(("wait", number, 0))


@pytest.fixture
def told() -> Iterator[Told]:
    observer = Told()
    with alike_ranks(RANKS, observer):
        yield observer


def test_sums_are_so_many_times_the_ranks_own_and_means_are_it(told: Told) -> None:
    assert (dist.get_world_size(), dist.get_rank(), others_are_there()) == (RANKS, 0, False)
    tensor = torch.tensor([1.0, 2.0])
    dist.all_reduce(tensor)
    assert tensor.tolist() == [8.0, 16.0]
    for operation in (dist.ReduceOp.AVG, dist.ReduceOp.MAX):
        dist.all_reduce(tensor, operation)
    assert tensor.tolist() == [8.0, 16.0]
    assert [row for row in told.rows if row[0] != "wait"] == [("all_reduce", 8, RANKS)] * 3


def test_a_sparse_gradient_is_summed_too(told: Told) -> None:
    tensor = torch.tensor([0.0, 3.0]).to_sparse()
    dist.all_reduce(tensor)
    # An index of 8 bytes, and a value of 4.
    assert tensor.to_dense().tolist() == [0.0, 24.0] and told.rows[0] == ("all_reduce", 12, RANKS)


def test_gathers_are_copies_and_scatters_the_ranks_own_part(told: Told) -> None:
    whole = torch.empty(2 * RANKS)
    dist.all_gather_into_tensor(whole, torch.tensor([1.0, 2.0]))
    assert whole.tolist() == [1.0, 2.0] * RANKS
    parts = [torch.empty(1) for _ in range(RANKS)]
    dist.all_gather(parts, torch.tensor([3.0]))
    assert torch.cat(parts).tolist() == [3.0] * RANKS
    own = torch.empty(2)
    dist.reduce_scatter_tensor(own, torch.arange(2.0 * RANKS))
    assert own.tolist() == [0.0, 8.0]
    objects: list[object] = [None] * RANKS
    dist.all_gather_object(objects, {"rank": 0})
    assert objects == [{"rank": 0}] * RANKS
    said = [row for row in told.rows if row[0] != "wait"][:3]
    assert said == [("all_gather", 8, RANKS), ("all_gather", 4, RANKS), ("reduce_scatter", 64, RANKS)]


def test_a_call_that_is_not_waited_for_is_told_before_its_wait(told: Told) -> None:
    work = dist.all_reduce(torch.ones(4), async_op=True)
    dist.barrier()
    assert told.rows == [("all_reduce", 16, RANKS), ("barrier", 0, RANKS), ("wait", 2, 0)]
    work.wait()
    assert told.rows[-1] == ("wait", 1, 0)


def test_a_mesh_has_groups_of_some_of_the_ranks(told: Told) -> None:
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("data", "shard"))
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=mesh["shard"].get_group())
    assert tensor.item() == 4 and ("all_reduce", 4, 4) in told.rows


def test_ddp_has_the_gradient_of_one_rank(told: Told) -> None:
    torch.manual_seed(0)
    alone, copy = nn.Linear(4, 2), nn.Linear(4, 2)
    copy.load_state_dict(alone.state_dict())
    data = torch.randn(3, 4)
    alone(data).square().mean().backward()
    wrapped = nn.parallel.DistributedDataParallel(copy)
    wrapped(data).square().mean().backward()
    assert torch.allclose(alone.weight.grad, copy.weight.grad)  # type: ignore[arg-type]
    assert ("all_reduce", 40, RANKS) in told.rows


def test_a_sharded_model_computes_finite_numbers(told: Told) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    for module in (model[0], model[2], model):
        fully_shard(module, mesh=init_device_mesh("cpu", (RANKS,)))
    told.rows.clear()
    model(torch.randn(3, 16)).square().mean().backward()
    kinds = [kind for kind, _, _ in told.rows]
    # The root has nothing of its own; the others gather for each of their passes.
    assert kinds.count("all_gather") == 4 and kinds.count("reduce_scatter") == 2
    assert all(bool(torch.isfinite(each.grad.to_local()).all()) for each in model.parameters())  # type: ignore[union-attr]


def test_outside_of_it_there_is_no_group() -> None:
    with alike_ranks(2, Told()):
        assert dist.is_initialized()
    assert not dist.is_initialized()
