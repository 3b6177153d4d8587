"""What a key changes is said once, and everybody who asks has the same answer."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from src.config import Config, ConfigError, command_line, compose, data_sheets
from src.config.keys import GROUPS, KEYS, Changes, find, key_of
from src.config.schema import flatten
from src.report import comparison
from src.report.runs import StudyRun, labels
from src.run.directory import RunDirectory, check_out
from src.run.tables import write_text
from tests.support import ROOT

CONF = ROOT / "conf"
# Hydra's own, and how often its sweeper is asked.
NOT_OURS = ("hydra", "defaults")


def known_keys() -> Iterator[str]:
    """Every key of conf/, dotted."""
    top = yaml.safe_load((CONF / "config.yaml").read_text())
    yield from flatten({key: value for key, value in top.items() if key not in NOT_OURS})
    for group in GROUPS:
        yield group
        for path in (CONF / group).glob("*.yaml"):
            if group != "hardware" or path.stem not in data_sheets.names():
                yield from flatten({group: yaml.safe_load(path.read_text())})


def test_every_key_has_an_entry_and_every_entry_is_a_key() -> None:
    keys = set(known_keys())
    assert [key for key in sorted(keys) if find(key) is None] == []
    parts = {".".join(key.split(".")[:count]) for key in keys for count in range(1, key.count(".") + 2)}
    # What a user's own files hold is seen by a command, and an audit is one by itself.
    assert KEYS.keys() - parts == {"audit", "hydra", "dataset.content", "dataset.code"}


def test_a_key_of_a_users_own_file_changes_the_work() -> None:
    assert key_of("model.temperature").changes is Changes.WORK
    assert key_of("dataset.crops").changes is Changes.WORK
    # Of a strategy it is an option, by which runs of one work differ.
    assert key_of("strategy.gossip").changes is Changes.TRAINING
    for own in ("model.temperature", "strategy.gossip"):
        assert key_of(own).distinguishes and key_of(own).labelled and key_of(own).named == "long"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(tmp_path)
    (config,) = compose.cells(command_line.parse(["strategy=ddp", "hardware.device=cpu", "out=run"]))
    return config


def changed(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The configuration with another value of a key."""
    copied = copy.deepcopy(dict(config))
    *path, last = key.split(".")
    inner = copied
    for part in path:
        inner = inner[part]
    inner[last] = f"another {inner.get(last)}"
    return copied


def test_all_who_ask_of_a_key_have_one_answer(config: Config) -> None:
    RunDirectory.claim(config).commit()
    write_text(Path("run/metrics.json"), '{"status": "ok"}')
    one = dataclasses.asdict(config)
    for key in flatten(one):
        if find(key) is not KEYS.get(key) or key in ("out", "overwrite"):
            continue
        other = changed(one, key)
        runs = [StudyRun(str(number), "ok", Path(), {}, each) for number, each in enumerate((one, other))]
        try:
            check_out(Config(**other))
            same_run = True
        except ConfigError as error:
            same_run = f"({key}: " not in str(error)
        entry = KEYS[key]
        seen = {
            "same run": same_run,
            "same configuration": comparison.configuration(runs[0]) == comparison.configuration(runs[1]),
            "same work": comparison.same_work(*runs),
            "one label": "[" not in labels(runs)["1"],
        }
        name = key in ("strategy.name", "model.name", "dataset.name", "hardware.name", "task.name")
        assert seen == {
            "same run": not entry.distinguishes,
            "same configuration": not entry.configures,
            "same work": entry.changes is not Changes.WORK,
            "one label": name or not entry.labelled,
        }, key


@pytest.mark.parametrize(
    "key",
    [
        "checkpoint_every",
        "resume",
        "strategy.max_restarts",
        "hardware.address",
        "hardware.jobs",
        "hardware.time_limit",
        "hardware.devices",
        "hardware.sample_seconds",
    ],
)
def test_what_is_no_part_of_a_comparison_makes_no_variant(key: str) -> None:
    assert not key_of(key).configures and not key_of(key).labelled


def test_a_finished_run_is_repeated_on_other_devices_and_watched_in_another_way(config: Config) -> None:
    RunDirectory.claim(config).commit()
    write_text(Path("run/metrics.json"), '{"status": "ok"}')
    hardware = dataclasses.replace(config.hardware, devices=[1], sample_seconds=0.1)
    check_out(dataclasses.replace(config, hardware=hardware, checkpoint_every=5))
    with pytest.raises(ConfigError, match=r"\(max_minutes: 5 there, 6 here\)"):
        check_out(dataclasses.replace(config, max_minutes=6))
