"""The typed keys of hardware: those of conf/config.yaml, with its defaults, and a mapping for users' code."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import yaml

from src import config as configuration
from src.config.run_config import Hardware
from tests.support import ROOT, config

WRITTEN = yaml.safe_load((ROOT / "conf/config.yaml").read_text())["hardware"]


def test_its_keys_and_defaults_are_those_of_conf_in_their_order() -> None:
    own = {**dataclasses.asdict(Hardware(name="local")), "allowed": WRITTEN["allowed"]}
    assert list(own.items()) == [*WRITTEN.items(), ("name", "local")]


def test_a_run_from_before_there_was_a_key_has_its_default(tmp_path: Path) -> None:
    chosen = config("hardware=vpn", "strategy=ddp", "hardware.warmup_steps=3")
    written = dataclasses.asdict(chosen)
    of_old = {key: written["hardware"][key] for key in ("name", "device", "links", "warmup_steps")}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**written, "hardware": of_old}))
    read = configuration.load(path).hardware
    assert read == Hardware(name="vpn", device="cpu", links=chosen.hardware.links, warmup_steps=3)
    assert read.wait_minutes == 60 and read.hosts is None


def test_a_config_yaml_has_its_keys_in_the_order_of_conf() -> None:
    written = dataclasses.asdict(config("hardware=cluster", "hardware.hosts=2", "strategy=ddp"))["hardware"]
    assert list(written) == [*WRITTEN, "name"]
    assert written["hosts"] == 2 and written["allowed"] == WRITTEN["allowed"]


def test_code_of_users_own_reads_and_replaces_it_as_a_mapping() -> None:
    chosen = config("hardware.warmup_steps=3")
    hardware = chosen.hardware
    assert isinstance(hardware, Mapping)
    assert hardware["warmup_steps"] == hardware.get("warmup_steps") == 3 and "no key" not in hardware
    changed = dataclasses.replace(chosen, hardware={**hardware, "device": "gpu"})  # type: ignore[arg-type]
    assert changed.hardware == dataclasses.replace(hardware, device="gpu")
