"""Emulated links are read by host and direction, and mistakes in them are sentences."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from src.config import ConfigError
from src.config.emulated_links import link_of
from src.machine.link import Direction, Link
from tests.nvidia_driver import Driver
from tests.support import config

VPN = ("hardware=vpn", "strategy=parameter_server", "workers=2")


def test_each_host_has_the_link_of_its_job() -> None:
    chosen = config("hardware=mixed", "strategy=parameter_server", "workers=2")
    wire, radio = Direction(1000, 0, 0), Direction(100, 1.5, 0)
    assert link_of(chosen, "worker-1") == link_of(chosen, "coordinator") == Link(wire, wire)
    assert link_of(chosen, "server-0") == Link(radio, radio)


def test_a_direction_of_one_host_can_be_set_alone() -> None:
    chosen = config(*VPN, "hardware.links.worker.up.rate_mbit=[20,5]", "hardware.links.server.down.loss=0.01")
    vpn = Direction(20, 10, 0)
    assert link_of(chosen, "worker-0") == Link(vpn, vpn)
    assert link_of(chosen, "worker-1") == Link(Direction(5, 10, 0), vpn)
    assert link_of(chosen, "server-0") == Link(vpn, Direction(20, 10, 0.01))


def test_emulated_hosts_have_cpu_devices_even_where_there_are_gpus(
    install_driver: Callable[..., Driver],
) -> None:
    install_driver("GPU-a", "GPU-b")
    assert config("strategy=ddp", "hardware.device=auto").hardware.device == "gpu"
    assert config("hardware=vpn", "strategy=ddp", "hardware.device=auto").hardware.device == "cpu"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("strategy=hogwild",), "hardware=vpn: the processes of strategy hogwild don't talk over a network"),
        (("strategy=single",), "strategy single don't talk over a network; choose hardware=local"),
        (("strategy=tf_single",), "strategy tf_single don't"),
        (("strategy=tf_mirrored",), "strategy tf_mirrored don't"),
        (("strategy=tf_custom",), "strategy tf_custom don't"),
        (("strategy=tf_model_split",), "strategy tf_model_split don't"),
        (
            ("strategy=ddp", "strategy.all_reduce=shared_memory"),
            "hardware=vpn: strategy.all_reduce=shared_memory doesn't cross hosts; choose auto or backend",
        ),
        (("strategy=ddp", "hardware.isolate=never"), "hardware.isolate=never: hardware=vpn has networks of"),
        (
            ("strategy=ddp", "hardware.links.worker.up.rate_mbit=0"),
            "hardware.links.worker.up.rate_mbit=0: must be at least 0.001",
        ),
        (
            ("strategy=ddp", "hardware.links.worker.down.loss=1"),
            "hardware.links.worker.down.loss=1: must be at most 0.99",
        ),
        (
            ("strategy=ddp", "hardware.links.worker.up.delay_ms=-1"),
            "hardware.links.worker.up.delay_ms=-1: must be at least 0",
        ),
        (
            ("strategy=ddp", "hardware.links.worker.up.rate_mbit=[1,2,3]"),
            "rate_mbit=[1, 2, 3]: has 3 entries, and 2 worker(s) need one each",
        ),
        (("strategy=ddp", "hardware.links.worker.up.rate=5"), "did you mean hardware.links.worker.up.rate_"),
        (("strategy=ddp", "hardware.links.worker.up=5"), "up=5: must be a mapping with rate_mbit, delay_ms"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else None,
)
def test_a_mistake_is_a_sentence(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config("hardware=vpn", *words)
    assert says in str(raised.value)
