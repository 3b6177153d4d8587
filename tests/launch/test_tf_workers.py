"""Workers of a TensorFlow cluster know each other's addresses and their own place."""

from __future__ import annotations

import json
import socket

from src.launch.local.hosts import LocalHosts
from src.launch.parameter_servers import TFParameterServers
from src.launch.single_process import SingleProcess
from src.launch.tf_workers import TFWorkers
from tests.support import config


def test_every_worker_knows_the_cluster_and_its_place() -> None:
    specs = TFWorkers().process_specs(config("strategy=tf_multiworker", "workers=3", "batch=3"), LocalHosts())
    environments = [spec.environment for spec in specs]
    assert [(spec.name, spec.workers) for spec in specs] == [(f"rank-{n}", (n,)) for n in range(3)]
    described = [json.loads(environment["TF_CONFIG"]) for environment in environments]
    assert [environment["RANK"] for environment in environments] == ["0", "1", "2"]
    assert {environment["WORLD_SIZE"] for environment in environments} == {"3"}
    assert [each["task"] for each in described] == [{"type": "worker", "index": n} for n in range(3)]
    (workers,) = {tuple(each["cluster"]["worker"]) for each in described}
    assert len(set(workers)) == 3
    for address in workers:
        host, port = address.split(":")
        # Nobody listens there yet.
        with socket.socket() as probe:
            probe.bind((host, int(port)))


def test_one_process_trains_for_all_workers() -> None:
    (only,) = SingleProcess().process_specs(config("strategy=tf_mirrored", "workers=2"), LocalHosts())
    assert only.workers == (0, 1)
    assert (only.environment["RANK"], only.environment["WORLD_SIZE"]) == ("0", "1")


def test_servers_and_coordinator_share_the_workers_cores_in_turn() -> None:
    specs = TFParameterServers().process_specs(
        config("strategy=tf_parameter_server", "workers=2", "strategy.servers=1"), LocalHosts()
    )
    assert [(spec.name, spec.workers) for spec in specs] == [
        ("rank-0", (0,)),
        ("rank-1", (1,)),
        ("server-0", (0,)),
        ("coordinator", (1,)),
    ]
    assert [spec.helper for spec in specs] == [False, False, True, True]
    # The coordinator's end is the job's; a worker is not missed.
    assert [spec.serves for spec in specs] == [True, True, True, False]
    assert [spec.dispensable for spec in specs] == [True, True, False, False]
    cluster = {
        kind: len(addresses)
        for kind, addresses in json.loads(specs[0].environment["TF_CONFIG"])["cluster"].items()
    }
    assert cluster == {"worker": 2, "ps": 1, "chief": 1}
