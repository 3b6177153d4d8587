"""Where torch's ranks meet: in one place at one start of a job, and on the loopback interface."""

from __future__ import annotations

from src.launch.local.hosts import LocalHosts
from src.launch.torch_ranks import TorchRanks
from tests.support import config


def test_ranks_of_one_start_meet_in_a_file_that_no_other_start_has_used() -> None:
    chosen = config("strategy=ddp", "workers=2", "batch=2")
    starts = [TorchRanks().process_specs(chosen, LocalHosts()) for _ in range(2)]
    stores = [{spec.environment["SCALEGUIDE_STORE"] for spec in specs} for specs in starts]
    assert [len(names) for names in stores] == [1, 1]
    assert stores[0].isdisjoint(stores[1])
    backends = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    assert {spec.environment[name] for specs in starts for spec in specs for name in backends} == {"lo"}
