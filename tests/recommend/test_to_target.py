"""Time to accuracy: steps over batches from a study's runs, and steps' seconds from predictions."""

from __future__ import annotations

import copy
import csv
import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from src.config import Config, ConfigError, command_line, compose
from src.config.run_config import Degrees
from src.predict.memory import GIB
from src.predict.step import Parts
from src.recommend import __main__ as command
from src.recommend import candidates, question, to_target
from src.recommend.candidate import Candidate, Target
from src.recommend.choice import Limits, choose
from src.recommend.space import Space
from src.report.batch_curve import BatchCurve, Reached
from tests.recommend.test_recommend import CNN, run

TRAINING = ("model=cnn", "dataset=mnist", "target_accuracy=0.98")
# 100 (1 + 512 / B) steps.
STEPS = {32: 1700, 128: 500, 512: 200, 2048: 125}
RATES = {32: 0.01, 128: 0.02, 512: 0.08, 2048: 0.16}


@functools.cache
def configured(*words: str) -> Config:
    named = any(word.startswith("strategy=") for word in words)
    given = [*([] if named else ["strategy=single"]), *words, "hardware.share_devices=true"]
    (config,) = compose.cells(command_line.parse([*given, "tracking.backend=none"]))
    return config


def study(folder: Path, *words: str, steps: dict[int, int] = STEPS) -> Path:
    """Runs of a training with four batches, three seeds each."""
    whole = dataclasses.asdict(configured(*TRAINING, *words))
    for batch, count in steps.items():
        for seed in range(3):
            config = copy.deepcopy(whole) | {"batch": batch, "seed": seed}
            config["optimizer"]["lr"] = RATES[batch]
            out = folder / "runs" / f"b{batch}-s{seed}-{len(words)}"
            out.mkdir(parents=True)
            (out / "config.yaml").write_text(yaml.safe_dump(config))
            reached = round(count * (0.97, 1.0, 1.03)[seed])
            (out / "metrics.json").write_text(json.dumps({"status": "ok", "steps_to_target": reached}))
            with (out / "epochs.csv").open("w", newline="") as file:
                csv.writer(file).writerows([["epoch", "step"], [0.5, reached - 1], [1, reached]])
    return folder


def test_a_study_of_the_same_training_tells_of_its_steps(tmp_path: Path) -> None:
    # Micro-batches, workers and the number of epochs change no step of a synchronous training.
    asked = configured(*TRAINING, "strategy=ddp", "batch=256", "microbatches=2", "epochs=7")
    found = to_target.read(study(tmp_path), asked, 60_000)
    assert found.accuracy == 0.98 and found.batches == [32, 128, 512, 2048]
    assert found.target(256).steps.median == pytest.approx(300, rel=0.05)
    # Between batches rates lie on a straight line of logarithms: half-way from 0.02 to 0.08.
    assert found.rate(256) == pytest.approx(0.04) and found.rate(4096) == 0.16
    said = found.sentence(4096, divided=False)
    assert "by 12 runs with batches 32 to 2048, 3 seeds each" in said
    assert "batch 4096 is outside of these" in said and "outside" not in found.sentence(256, divided=False)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("optimizer.momentum=0",), r"optimizer.momentum=0.9 there, 0\b.* here"),
        (("dataset.limit=1000",), "dataset.limit=None there, 1000 here"),
        (("target_accuracy=0.99",), "target_accuracy=0.98 there, 0.99 here"),
        (("model=mlp",), "model.name=cnn there, mlp here"),
    ],
)
def test_another_training_tells_nothing(words: tuple[str, ...], line: str, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=f"no runs of this training are there; the nearest differ: .*{line}"
    ):
        to_target.read(study(tmp_path), configured(*TRAINING, *words), 60_000)


def test_runs_of_several_strategies_are_one_training(tmp_path: Path) -> None:
    study(tmp_path, steps={batch: STEPS[batch] for batch in (32, 128)})
    study(tmp_path, "strategy=ddp", "workers=2", steps={batch: STEPS[batch] for batch in (512, 2048)})
    found = to_target.read(tmp_path, configured(*TRAINING), 60_000)
    assert found.batches == [32, 128, 512, 2048]


def test_a_batch_with_which_not_all_runs_reached_it_tells_nothing(tmp_path: Path) -> None:
    folder = study(tmp_path / "found")
    missed = folder / "runs/b512-s1-0/metrics.json"
    missed.write_text(json.dumps({"status": "ok", "steps_to_target": None}))
    (folder / "runs/b128-s2-0/metrics.json").unlink()
    found = to_target.read(folder, configured(*TRAINING), 60_000)
    assert found.batches == [32, 128, 2048] and not found.untold(128) and not found.untold(256)
    assert found.untold(512).startswith("batch=512: 2 of 3 runs with it in ")
    assert "2 to 3 seeds each" in found.sentence(128, divided=False)
    asked = (*CNN, "batch=128,512", f"steps_from={folder}", "target_accuracy=0.98")
    compared, apart = candidates.Found(), candidates.Found()
    told = candidates._told(question.read([*asked, "aim=time_to_accuracy"]), found, compared)
    assert told.batches == (128,) and compared.reasons == [found.untold(512)]
    # Each batch has its own answer, and one of them no time to the target.
    told = candidates._told(question.read(asked), found, apart)
    assert told.batches == (128, 512) and apart.reasons == [found.untold(512)]
    targets = Space(told, configured(*TRAINING), 1.0, 1.0, evidence=found).targets
    assert list(targets) == [128]
    with pytest.raises(ConfigError, match=r"^batch=512: 2 of 3 runs"):
        alone = question.read([*CNN, "batch=512", f"steps_from={folder}", "aim=time_to_accuracy"])
        candidates._told(alone, found, candidates.Found())


def test_an_asynchronous_training_tells_nothing(tmp_path: Path) -> None:
    study(tmp_path, "strategy=hogwild", "workers=2")
    with pytest.raises(ConfigError, match="no synchronous runs of several batches"):
        to_target.read(tmp_path, configured(*TRAINING), 60_000)


def test_the_command_looks_for_the_target_as_often_as_the_study_did(tmp_path: Path) -> None:
    found = to_target.read(study(tmp_path), configured(*TRAINING), 60_000)
    # With 32 samples a step it looked at each: after as many samples, 1.6 steps of 20.
    assert "evaluate_every=2" in found.words(20, ["batch=20"])
    words = found.words(1024, ["batch=1024"])
    assert "optimizer.lr=0.113" in words
    # As many epochs as twice the steps have, at the most that they may be.
    most = found.target(1024).steps.high
    assert f"epochs={math.ceil(2 * most * 1024 / 60_000)}" in words
    assert not any(word.startswith("epochs=") for word in found.words(1024, ["epochs=3"]))


def test_of_several_targets_one_is_said(tmp_path: Path) -> None:
    study(tmp_path)
    study(tmp_path, "target_accuracy=0.99", steps={batch: 2 * count for batch, count in STEPS.items()})
    with pytest.raises(ConfigError, match=r"target_accuracy=0.98 or target_accuracy=0.99"):
        to_target.read(tmp_path, configured("model=cnn", "dataset=mnist"), 60_000)
    found = to_target.read(tmp_path, configured(*TRAINING, "target_accuracy=0.99"), 60_000)
    assert found.target(512).steps.median == pytest.approx(400, rel=0.05)


def test_a_folder_without_such_runs_is_a_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be the folder of a study"):
        to_target.read(tmp_path, configured(*TRAINING), 60_000)
    with pytest.raises(
        ConfigError, match="no synchronous runs of several batches there had a target_accuracy"
    ):
        to_target.read(study(tmp_path, steps={32: 100}), configured(*TRAINING), 60_000)


CURVE = BatchCurve(
    tuple(Reached(batch, count * k) for batch, count in STEPS.items() for k in (0.97, 1.0, 1.03))
)


def way(devices: int, batch: int, seconds: float, **more: Any) -> Candidate:
    """A way that reaches the target with a batch, by steps of so many seconds."""
    target = Target(CURVE, CURVE.at(batch))
    return Candidate(
        Degrees(data=devices), batch, 1, batch // devices, Parts(seconds, 0.0, 0.0, 0.0), {"weights": GIB},
        0.0, 80 * GIB, 1e6, target=target, **more,
    )  # fmt: skip


def test_the_sooner_end_is_chosen_over_batches_not_the_higher_rate() -> None:
    # 2,048 samples in 1.6 s are a higher rate than 512 in 0.5 s, and 125 such steps take longer than 200.
    small, large = way(1, 512, 0.5), way(1, 2048, 1.6)
    assert large.rate > small.rate
    assert small.hours == pytest.approx(100 / 3600, rel=0.03)
    assert large.hours == pytest.approx(200 / 3600, rel=0.03)
    assert choose([small, large], "time_to_accuracy").chosen is small
    assert choose([small, large], "throughput").chosen is large


def test_more_devices_pay_as_long_as_a_larger_batch_saves_steps() -> None:
    ways = [way(1, 128, 0.128), way(4, 512, 0.15), way(64, 8192, 0.3)]
    assert choose(ways, "time_to_accuracy").chosen is ways[1]


def test_money_and_energy_are_those_to_the_target() -> None:
    one, four = way(1, 512, 0.5, price=2.0, watts=400.0), way(4, 512, 0.2, price=2.0, watts=400.0)
    assert one.cost == pytest.approx(2.0 * one.hours) and four.cost == pytest.approx(8.0 * four.hours)
    # That is the most that they take, for as long as it may last.
    assert four.kilowatt_hours == pytest.approx(1.6 * four.hours_interval[1])
    assert choose([one, four], "energy").chosen is one and choose([one, four], "cost").chosen is one
    assert choose([one, four], "cost", Limits(hours=0.02)).chosen is four


def test_what_isnt_known_of_the_steps_widens_the_time_and_the_doubt() -> None:
    one, other, far = way(1, 512, 0.5), way(1, 512, 0.4), way(1, 2048, 0.4)
    few = BatchCurve(
        tuple(Reached(batch, count * k) for batch, count in STEPS.items() for k in (0.6, 1.0, 1.6))
    )
    vague = dataclasses.replace(one, target=Target(few, few.at(512)))
    width = [high / low for low, high in (one.hours_interval, vague.hours_interval)]
    assert width[1] > 1.5 * width[0]
    # Of one batch the steps are as many, however many they are.
    assert one.apart(other) == pytest.approx(vague.apart(dataclasses.replace(other, target=vague.target)))
    unsure = dataclasses.replace(far, target=Target(few, few.at(2048)))
    assert vague.apart(unsure) > 1.3 * one.apart(far)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("aim=time_to_accuracy",), "aim=time_to_accuracy: needs the steps to a target: steps_from="),
        (("aim=time_to_accuracy", "steps_from=nowhere"), "steps_from=nowhere: must be the folder of a study"),
        (
            ("steps_from=found", "optimizer.lr=0.5"),
            "optimizer.lr=0.5: steps from found are those with each batch's",
        ),
        (
            ("steps_from=found", "optimizer.warmup_steps=5"),
            "optimizer.warmup_steps=5: steps from found are those with each batch's best rate and warm-up",
        ),
        (("steps_from=found", "model=mlp"), "steps_from=found: no runs of this training are there"),
    ],
)
def test_a_mistake_is_a_line(
    words: tuple[str, ...],
    line: str,
    mnist: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study(tmp_path / "found")
    monkeypatch.chdir(tmp_path)
    assert command.main([*CNN, *words]) == 2
    said = capsys.readouterr().err
    assert line in said and said.count("\n") == 1, said


@pytest.mark.slow
def test_time_to_accuracy_on_devices_that_nobody_has(mnist: None, tmp_path: Path) -> None:
    study(tmp_path / "found")
    words = (*CNN, "strategy=single,ddp", "devices=1..8", "steps_from=found", "batch=64,512,4096")
    said = run(tmp_path, *words, "aim=time_to_accuracy", "--json")
    assert said.returncode == 0, said.stderr
    answer, _ = json.loads(said.stdout)
    assert answer["batch"] is None
    every = [answer["chosen"], *answer["as_good"], *answer["behind"]]
    assert {each["batch"] for each in every} == {64, 512, 4096}
    for each in every:
        assert each["hours"] == pytest.approx(each["steps_to_target"]["median"] * each["seconds"] / 3600)
        assert each["kilowatt_hours"] == pytest.approx(0.4 * each["devices"] * each["hours_interval"][1])
    # A step of a small network takes about as long with any of these batches: the fewest steps are soonest.
    assert answer["chosen"]["batch"] == 4096
    assert any("batch 4096 is outside of these" in each for each in answer["sentences"])
    command = answer["chosen"]["command"]
    assert "target_accuracy=0.98 stop_at_target=true evaluate_every=1 optimizer.lr=0.16" in command
