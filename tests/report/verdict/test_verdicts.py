"""Studies that were made up, each with the answer that it should get."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from src.config import ConfigError
from src.report import study as studies
from src.report.verdict.objective import AIMS, Objective, objective
from src.report.verdict.verdicts import Verdict, as_json, verdicts, word_by_cell
from tests.report.conftest import Study

# Machines' noise in three repetitions: no two of them alike.
NOISE = (1.0, 1.02, 0.99)


def repeated(study: Study, name: str, *args: Any, rates: Sequence[float], **keys: Any) -> None:
    """Runs of one configuration, one a rate; repetitions are blocks."""
    declared = keys.pop("declared", {})
    for number, rate in enumerate(rates, 1):
        cell = name if number == 1 else f"{name}-r{number}"
        known = {"configuration": name, "repetition": number, **declared}
        figures = {"samples_per_second": rate, "train_seconds": 1e5 / rate, "memory_peak_bytes": 2**30}
        figures |= {"accuracy": 0.94, "score": 0.94}
        study.run(cell, *args, declared=known, **{**figures, **keys})


def scaled(rate: float, wobble: Sequence[float] = (1.0, 1.01, 0.995)) -> list[float]:
    return [rate * noise * other for noise, other in zip(NOISE, wobble, strict=True)]


def asked(study: Study, *words: str) -> list[Verdict]:
    whole = studies.read(study.params)
    rows = studies.merged_rows(whole, studies.load(whole, study.directory))
    return verdicts(rows, objective(whole, words), whole)


def said(study: Study, *words: str) -> str:
    (verdict,) = asked(study, *words)
    assert 2 <= len(verdict.sentences) <= 5
    return f"{verdict.title}. " + " ".join(sentence.text for sentence in verdict.sentences)


def test_what_is_faster_is_chosen_with_its_interval_its_cost_and_what_not_to_use(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000))
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(1700, (1.0, 0.99, 1.01)))
    repeated(empty_study, "pipeline", "pipeline", workers=2, rates=scaled(700), bubble_fraction=0.4)
    text = said(empty_study)
    assert text.startswith("cnn on mnist: ddp on 2 devices. Use ddp on 2 devices: 1,700 samples/s, ")
    rows = {row["cell"]: row for row in _rows(empty_study)}
    low, high = (rows["ddp"][key] for key in ("speedup_low", "speedup_high"))
    assert 1 < low < 1.7 < high
    # The table's interval is of this comparison alone: t(0.975, 4) = 2.7764. The verdict's hold for all
    # pairs of three at once: q(0.95; 3, 4) = 5.0402, over the square root of 2 3.5640.
    wider = math.sqrt(high / low) ** (3.5640 / 2.7764)
    centre = math.sqrt(low * high)
    expected = f"{centre / wider:.2f} to {centre * wider:.2f}"
    assert f"1.70 times as fast as single (95 % interval for all 3 at once {expected})" in text
    assert "It takes 2 devices, each of which does 85% of what one alone does; 1 GiB of memory" in text
    assert "accuracy 94.00%" in text and "(parity holds)" in text
    assert "Don't use pipeline on 2 devices: 0.70 times as fast as single" in text
    assert "its stages are idle 40% of the time" in text
    assert "9 runs, 3 of each configuration" in text


def test_each_run_has_its_word(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000))
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(1700, (1.0, 0.99, 1.01)))
    repeated(empty_study, "pipeline", "pipeline", workers=2, rates=scaled(700))
    words = word_by_cell(asked(empty_study))
    assert (words["ddp"], words["single-r2"], words["pipeline-r3"]) == (
        "chosen",
        "not chosen",
        "slower than single",
    )


def test_every_sentence_names_the_runs_on_which_it_stands(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000))
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(1700, (1.0, 0.99, 1.01)))
    (verdict,) = asked(empty_study)
    every = set(empty_study.cells)
    assert set(verdict.sentences[0].cells) == every
    assert set(verdict.sentences[1].cells) == every
    assert all(set(sentence.cells) <= every and sentence.cells for sentence in verdict.sentences)
    (answer,) = as_json(verdict)["answers"]
    assert answer["chosen"] == ["ddp", "ddp-r2", "ddp-r3"] and answer["batch"] == 128
    assert answer["configurations"][1]["reference"] == ["single", "single-r2", "single-r3"]


def test_what_ran_once_is_never_called_faster(empty_study: Study) -> None:
    empty_study.run("single", samples_per_second=1000.0)
    empty_study.run("ddp", "ddp", workers=2, samples_per_second=1900.0)
    text = said(empty_study)
    assert text.startswith("cnn on mnist: undecided. Nothing faster than single (1,000 samples/s) is shown")
    assert "in these runs: ddp on 2 devices 1.90 times as fast as single" in text
    assert "would tell most: repetitions, `make study NAME=small REPEAT=3`" in text


def test_what_ran_once_among_repetitions_is_not_chosen_and_is_named(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000))
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(1700, (1.0, 0.99, 1.01)))
    repeated(empty_study, "mpi", "mpi", workers=2, rates=[1900.0])
    text = said(empty_study)
    assert "Use ddp on 2 devices" in text and "too few to compare mpi on 2 devices" in text


def test_of_what_nothing_tells_apart_the_fewest_devices_are_chosen(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=[1000, 1100, 950])
    repeated(empty_study, "ddp", "ddp", workers=2, rates=[1080, 1000, 1050])
    text = said(empty_study)
    assert text.startswith(
        "cnn on mnist: single. Stay with single: 1,000 samples/s; nothing faster is shown."
    )
    assert "As good, as far as known: ddp on 2 devices, 1.08 times as fast as it (" in text
    assert "Don't use" not in text


def test_what_is_as_fast_as_one_device_is_no_gain(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000))
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(1700, (1.0, 0.99, 1.01)))
    repeated(empty_study, "pipeline", "pipeline", workers=2, rates=scaled(1001, (1.0, 0.99, 1.01)))
    text = said(empty_study)
    assert "No gain is shown by pipeline on 2 devices: 1.00 times as fast as single (" in text


def test_a_tie_of_two_that_are_faster_names_both(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000))
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(1700, (1.0, 0.99, 1.01)))
    repeated(empty_study, "mpi", "mpi", workers=2, rates=scaled(1705, (1.01, 0.99, 1.0)))
    text = said(empty_study)
    chosen, other = ("mpi", "ddp") if "Use mpi" in text else ("ddp", "mpi")
    assert f"Use {chosen} on 2 devices" in text
    assert f"As good, as far as known: {other} on 2 devices, " in text


def test_what_is_bound_by_its_input_is_told_and_stays_on_one_device(empty_study: Study) -> None:
    waits = {"input_wait_fraction": 0.45}
    repeated(empty_study, "single", rates=scaled(1000), **waits)
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(900), **waits)
    text = said(empty_study)
    assert "Stay with single" in text
    assert "ddp on 2 devices: 0.90 times as fast as single" in text
    assert "and waits 45% of the time for its input" in text
    assert "bound by their input, which no further device makes faster" in text


def test_what_is_bound_by_its_exchange_is_told(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000), busy_fraction=0.98)
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(400), busy_fraction=0.2)
    text = said(empty_study)
    assert "Stay with single" in text
    assert "Don't use ddp on 2 devices: 0.40 times as fast" in text
    assert "and its devices compute 20% of the time" in text


def test_what_ran_out_of_memory_is_not_used_and_what_fits_is(empty_study: Study) -> None:
    empty_study.run("single", status="out_of_memory", declared={"configuration": "single"})
    repeated(empty_study, "pipeline", "pipeline", workers=2, rates=scaled(700))
    repeated(empty_study, "split", "model_split", workers=2, rates=scaled(400))
    text = said(empty_study)
    assert "Use pipeline on 2 devices: 700 samples/s, 1.75 times as fast as model_split on 2 devices" in text
    assert "Don't use single, which ran out of memory" in text


def test_a_disturbed_run_is_named(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000))
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(1700, (1.0, 0.99, 1.01)))
    empty_study.run(
        "ddp-r4", "ddp", workers=2, samples_per_second=500.0, cpu_wait_fraction=0.4, steal_fraction=0.0,
        declared={"configuration": "ddp", "repetition": 4}, accuracy=0.94,
    )  # fmt: skip
    assert "7 runs, up to 4 of each configuration; 1 of them disturbed by other processes" in said(
        empty_study
    )
    assert "(ddp on 2 devices: 1)" in said(empty_study)


def test_the_part_of_the_devices_capacity_is_told_and_capacity_is_never_chosen(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000))
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(1520))
    repeated(
        empty_study,
        "both",
        "capacity",
        workers=2,
        scaling="weak",
        parity="none",
        rates=scaled(1900),
        options={"capacity": True},
    )
    text = said(empty_study)
    assert "Use ddp on 2 devices" in text and "6 runs, 3 of each" in text
    assert "each of which does 76% of what one alone does (80% of their capacity, " in text


def test_a_broken_parity_is_never_chosen_however_fast(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000))
    wrong = [2.5, 2.2, 2.1, 2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 1.4, 1.3]
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(3000), losses=wrong)
    text = said(empty_study)
    assert "Stay with single" in text
    assert "Don't use ddp on 2 devices, which computes something else: its first losses are 9e-02 off" in text


def test_frameworks_have_verdicts_of_their_own(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000))
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(1700, (1.0, 0.99, 1.01)))
    tensorflow = {"framework": "tensorflow"}
    repeated(empty_study, "tf", "tf_single", rates=scaled(5000), **tensorflow)
    repeated(empty_study, "tf2", "tf_custom", workers=2, rates=scaled(4000), **tensorflow)
    torch, keras = asked(empty_study)
    assert torch.title == "cnn on mnist, PyTorch: ddp on 2 devices"
    assert keras.title == "cnn on mnist, TensorFlow: tf_single"
    assert not any("tf" in sentence.text for sentence in torch.sentences)


def test_hardware_that_differs_is_asked_apart(empty_study: Study) -> None:
    for hardware, rate in (("lan", 1500.0), ("vpn", 200.0)):
        where = {"name": hardware, "links": hardware}
        repeated(empty_study, f"s-{hardware}", rates=scaled(1000), hardware=where)
        repeated(empty_study, f"d-{hardware}", "ddp", workers=2, rates=scaled(rate, NOISE), hardware=where)
    assert [verdict.title for verdict in asked(empty_study)] == [
        "cnn on mnist, lan: ddp on 2 devices",
        "cnn on mnist, vpn: single",
    ]


def test_each_batch_has_a_choice_of_its_own_in_one_verdict(empty_study: Study) -> None:
    for batch, rate in ((64, 800.0), (512, 1900.0)):
        repeated(empty_study, f"single-{batch}", batch=batch, rates=scaled(1000))
        repeated(empty_study, f"ddp-{batch}", "ddp", workers=2, batch=batch, rates=scaled(rate, NOISE))
    text = said(empty_study)
    assert text.startswith("cnn on mnist: it depends on the batch. At batch 64 stay with single")
    assert "at batch 512 use ddp on 2 devices: " in text
    assert "Don't use at batch 64 ddp on 2 devices: 0.80 times" in text


def test_other_software_is_asked_apart(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000))
    other = {"software": {"files": {"src/worker.py": "another"}}}
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(1700), environment=other)
    first, second = asked(empty_study)
    assert first.subject == "cnn on mnist, 1 of 2 machines or versions"
    assert "Only single was measured" in first.sentences[0].text
    assert "Only ddp on 2 devices was measured" in second.sentences[0].text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["limit.memory_gib=1"], "Use pipeline on 2 devices"),
        (["limit.memory_gib=1"], "single, which needs 2 GiB a device, above limit.memory_gib=1"),
        (["limit.memory_gib=0.1"], "Nothing that was measured can be chosen: single needs 2 GiB a device"),
        (["limit.hours=0.025"], "Stay with single"),
        (["limit.hours=0.025"], "pipeline on 2 devices, which trains for 0.0403 h, above limit.hours=0.025"),
        (["aim=memory"], "Use pipeline on 2 devices: 512 MiB a device, 0.25 times the memory of single"),
        (["aim=energy"], "can be chosen by aim=energy: each configuration has no energy counter"),
        (["aim=time_to_accuracy"], "aim=time_to_accuracy: each configuration has no target_accuracy"),
    ],
)
def test_limits_and_aims_choose(empty_study: Study, words: list[str], says: str) -> None:
    repeated(empty_study, "single", rates=scaled(1400), memory_peak_bytes=2 * 2**30)
    half = [2**29 * factor for factor in (1.0, 1.02, 0.98)]
    for number, (rate, memory) in enumerate(zip(scaled(700), half, strict=True), 1):
        empty_study.run(
            f"pipeline-r{number}", "pipeline", workers=2, samples_per_second=rate, accuracy=0.94,
            memory_peak_bytes=memory, train_seconds=1e5 / rate,
            declared={"configuration": "pipeline", "repetition": number},
        )  # fmt: skip
    assert says in said(empty_study, *words)


def test_accuracies_are_told_apart_by_seeds_alone(empty_study: Study) -> None:
    for seed, (one, two) in enumerate(((0.90, 0.93), (0.91, 0.945), (0.905, 0.93))):
        known = {"seed": seed, "samples_per_second": 1000.0, "train_seconds": 60.0}
        empty_study.run(f"single-{seed}", accuracy=one, score=one, **known)
        empty_study.run(
            f"local-{seed}", "local_sgd", workers=2, parity="averaged", accuracy=two, score=two, **known
        )
    text = said(empty_study, "aim=accuracy")
    assert text.startswith(
        # 0.935, and 4.3027 standard errors of 0.00866 / sqrt(3) to either side.
        "cnn on mnist: local_sgd on 2 devices. Use local_sgd on 2 devices: accuracy 93.50%, mean of 3 seeds, "
        "95 % 91.35% to 95.65%"
    )
    # 3, 3.5 and 2.5 points: mean 3, standard deviation 0.5; t(0.975, 2) / sqrt(3) = 2.4841.
    assert "+2.50 points from single (95 % interval +1.76 to +4.24)" in text


@pytest.mark.parametrize(("higher", "chosen"), [(None, "local_sgd on 2 devices"), (False, "single")])
def test_of_errors_the_smaller_is_better(empty_study: Study, higher: bool | None, chosen: str) -> None:
    for seed, (one, two) in enumerate(((0.20, 0.50), (0.21, 0.52), (0.205, 0.50))):
        for name, strategy, workers, error in (("single", "single", 1, one), ("local", "local_sgd", 2, two)):
            folder = empty_study.run(
                f"{name}-{seed}", strategy, workers=workers, parity="averaged", seed=seed, score=error,
                metric="mean_absolute_error", train_seconds=60.0, accuracy=None,
            )  # fmt: skip
            config = yaml.safe_load((folder / "config.yaml").read_text())
            config["task"] = {"name": "turning", **({} if higher is None else {"higher_is_better": higher})}
            (folder / "config.yaml").write_text(yaml.safe_dump(config))
    text = said(empty_study, "aim=accuracy")
    assert text.startswith(f"cnn on mnist: {chosen}")
    if higher is False:
        assert "Don't use local_sgd on 2 devices: +0.2950 from single" in text


def test_a_score_that_is_no_number_is_none(empty_study: Study) -> None:
    for seed in range(3):
        empty_study.run(f"single-{seed}", seed=seed, score=0.9, accuracy=0.9, train_seconds=60.0)
        score = math.nan if seed == 1 else 0.95 + seed / 100
        known = {"seed": seed, "score": score, "accuracy": score, "train_seconds": 60.0}
        empty_study.run(f"ddp-{seed}", "ddp", workers=2, **known)
    assert "nan" not in said(empty_study, "aim=accuracy")


def test_repetitions_of_one_seed_say_nothing_of_accuracies(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000), accuracy=0.9, score=0.9)
    repeated(empty_study, "local", "local_sgd", workers=2, rates=scaled(1000), accuracy=0.95, score=0.95)
    text = said(empty_study, "aim=accuracy")
    assert (
        "Nothing more accurate than single (accuracy 90.00%, one seed) is shown: how far two seeds differ"
        in text
    )
    assert "would tell most: several seeds in the study's grid, `seed: [0,1,2]`" in text


def test_accuracies_that_tie_over_seeds_are_told_as_tied(empty_study: Study) -> None:
    for seed, (one, two) in enumerate(((0.900, 0.905), (0.910, 0.908), (0.905, 0.910))):
        known = {"seed": seed, "samples_per_second": 1000.0, "train_seconds": 60.0}
        empty_study.run(f"single-{seed}", accuracy=one, score=one, **known)
        empty_study.run(f"ddp-{seed}", "ddp", workers=2, accuracy=two, score=two, **known)
    text = said(empty_study, "aim=accuracy")
    assert "Stay with single" in text and "As good, as far as known: ddp on 2 devices, +0.30 points" in text


def test_a_target_that_some_runs_missed_is_none_to_choose_by(empty_study: Study) -> None:
    for number, (one, two) in enumerate(((100.0, 50.0), (102.0, 51.0), (101.0, None)), 1):
        known = {"repetition": number}
        for name, strategy, workers, seconds in (("single", "single", 1, one), ("ddp", "ddp", 2, two)):
            folder = empty_study.run(
                f"{name}-r{number}", strategy, workers=workers, seconds_to_target=seconds, accuracy=0.9,
                declared={**known, "configuration": name},
            )  # fmt: skip
            config = folder / "config.yaml"
            config.write_text(config.read_text() + "target_accuracy: 0.9\n")
    text = said(empty_study, "aim=time_to_accuracy")
    assert "Stay with single: 101 s to its target" in text
    assert "Don't use ddp on 2 devices, which reached its target in 2 of 3 runs" in text


def test_what_is_better_wherever_both_ran_leads(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=[1000, 1010, 700, 705])
    repeated(empty_study, "mpi", "mpi", workers=2, rates=[1980, 1990, 1390, 1385])
    # Its rounds were the fast ones.
    repeated(empty_study, "ddp", "ddp", workers=2, rates=[1800, 1815])
    assert said(empty_study).startswith("cnn on mnist: mpi on 2 devices. Use mpi on 2 devices")


def test_a_run_that_was_cut_off_keeps_no_limit_of_hours(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000), train_seconds=3600.0, status="time_limit")
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(1700), train_seconds=3500.0)
    text = said(empty_study, "limit.hours=1.05")
    assert "Use ddp on 2 devices" in text
    assert "single, which was stopped after 1 h, and may take longer than limit.hours allows" in text


def test_the_largest_memory_of_all_runs_is_held_against_the_limit(empty_study: Study) -> None:
    for number, memory in enumerate((1.0, 1.0, 1.6), 1):
        known = {"configuration": "single", "repetition": number}
        empty_study.run(
            f"single-r{number}", samples_per_second=1000.0, memory_peak_bytes=memory * 2**30, declared=known
        )
    assert "can be chosen by aim=throughput: each configuration needs 1.6 GiB" in said(
        empty_study, "limit.memory_gib=1.2"
    )


def test_what_ran_once_on_one_device_does_not_lead_repetitions(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000))
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(1700, (1.0, 0.99, 1.01)))
    repeated(empty_study, "split", microbatches=4, rates=[1900.0])
    text = said(empty_study)
    assert "Use ddp on 2 devices" in text and "too few to compare single [microbatches=4]" in text


def test_a_choice_that_learns_otherwise_says_so_and_names_one_that_does_not(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000))
    repeated(
        empty_study,
        "hog",
        "hogwild",
        workers=2,
        parity="asynchronous",
        rates=scaled(1800, (1.0, 0.99, 1.01)),
        accuracy=0.113,
        score=0.113,
    )
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(1500, (1.01, 0.99, 1.0)))
    first = asked(empty_study)[0].sentences[0].text
    assert (
        "it doesn't learn as one device does (accuracy 11.30%, one seed), as ddp on 2 devices does, 1.5"
        in first
    )


def test_a_difference_that_matters_to_nobody_is_none(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000), memory_peak_bytes=2**30)
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(1000), memory_peak_bytes=2**30 - 512)
    assert "Stay with single: 1 GiB a device; nothing smaller is shown" in said(empty_study, "aim=memory")


def test_runs_of_other_epochs_have_no_accuracy_in_common(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000))
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(1000))
    for config in empty_study.directory.glob("runs/ddp*/config.yaml"):
        config.write_text(config.read_text().replace("epochs: 2", "epochs: 10"))
    assert [each.subject for each in asked(empty_study, "aim=accuracy")] == [
        "cnn on mnist, epochs 2",
        "cnn on mnist, epochs 10",
    ]


def test_a_missing_single_run_is_to_be_retried_and_not_to_be_declared_again(empty_study: Study) -> None:
    empty_study.declare("single", strategy="single", model="cnn", dataset="mnist", workers=1)
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(1700))
    text = said(empty_study)
    assert "1 failed or missing cell in the study" in text
    assert "what failed or is missing would tell most: `make retry`" in text


def test_more_devices_are_asked_for_only_as_they_divide_the_batch(empty_study: Study) -> None:
    cores = {"processors": {"model": "Example CPU", "count": 7, "usable": [*range(7)]}}
    repeated(empty_study, "single", rates=scaled(1000), environment=cores)
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(1700, (1.0, 0.99, 1.01)), environment=cores)
    text = said(empty_study)
    assert "of this machine's 7 devices no more than 2 were tried" in text and "workers: 4" in text


def test_prices_give_costs_and_their_front_with_time(empty_study: Study, tmp_path: Path) -> None:
    # 100,000 samples: 100 s on one device, 62.5 s on two, 125 s on the two of the pipeline.
    for name, workers, rate in (("single", 1, 1000.0), ("ddp", 2, 1600.0), ("pipeline", 2, 800.0)):
        repeated(empty_study, name, name, workers=workers, rates=[rate] * 3, bubble_fraction=None)
    prices = tmp_path / "prices.yaml"
    prices.write_text("{currency: EUR, date: 2026-11-01, source: a list, device_hour: {cpu: 3.6}}")
    (verdict,) = asked(empty_study, "aim=cost", f"prices={prices}")
    text = " ".join(sentence.text for sentence in verdict.sentences)
    # 3.6 an hour is 0.001 a second.
    assert "Stay with single: 0.1 EUR; nothing cheaper is shown." in text
    assert "ddp on 2 devices: 1.25 times the price of single (1.25 to 1.25)" in text
    assert (
        "Cost and time, of which no other configuration has less of both: single 0.1 EUR in 100 s, "
        "ddp on 2 devices 0.125 EUR in 62.5 s (prices of 2026-11-01, a list)." in text
    )


def test_a_study_names_its_own_aim_and_limits(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000))
    whole = studies.read(empty_study.params)
    wanted = objective({**whole, "aim": "memory", "limit": {"hours": 2}})
    assert wanted == Objective(AIMS["memory"], hours=2)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["aim=sped"], "aim=sped: must be one of throughput, .*; did you mean"),
        (["limit.memory=3"], "there is no such key; .*; did you mean limit.memory_gib?"),
        (["limit.hours=0"], "limit.hours=0: must be above 0"),
        (["aim"], "aim: must be key=value"),
        (["aim=cost"], "aim=cost: needs what a device costs: prices=FILE"),
        (["prices=nowhere.yaml"], "nowhere.yaml: can't be read: No such file"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        objective({}, words)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{currency: EUR, date: 2026, source: me, device_hour: {gpu: 2}}", "no price of Example CPU or cpu"),
        ("{currency: EUR, date: 2026, source: me}", "lacks `device_hour`"),
        (
            "{currency: EUR, date: 2026, source: me, device_hour: {cpu: x}}",
            "device_hour.cpu=x: must be a number",
        ),
        ("{curency: EUR}", "there is no key curency; did you mean currency?"),
    ],
)
def test_a_file_of_prices_that_does_not_serve_is_told(
    empty_study: Study, tmp_path: Path, text: str, says: str
) -> None:
    repeated(empty_study, "single", rates=scaled(1000))
    (tmp_path / "prices.yaml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        asked(empty_study, "aim=cost", f"prices={tmp_path / 'prices.yaml'}")


def _rows(study: Study) -> list[dict[str, Any]]:
    whole = studies.read(study.params)
    return studies.merged_rows(whole, studies.load(whole, study.directory))


def test_a_choice_of_which_every_run_was_disturbed_says_so_at_once(empty_study: Study) -> None:
    repeated(empty_study, "single", rates=scaled(1000))
    rates = scaled(1700, (1.0, 0.99, 1.01))
    repeated(empty_study, "ddp", "ddp", workers=2, rates=rates, cpu_wait_fraction=0.2)
    text = said(empty_study)
    assert text.startswith("cnn on mnist: ddp on 2 devices, by disturbed runs. Use ddp on 2 devices: ")
    first = text[: text.index(" It takes 2 devices")]
    assert first.endswith("; but other processes disturbed every run of ddp on 2 devices.")
    # What fits into memory doesn't depend on that.
    assert "by disturbed runs" not in said(empty_study, "aim=memory")


def test_capacity_alone_gives_no_verdict(empty_study: Study) -> None:
    options = {"capacity": True}
    repeated(empty_study, "capacity", "capacity", workers=2, options=options, rates=scaled(1700))
    assert asked(empty_study) == []


def test_what_a_machine_with_one_gpu_skips_is_told_with_a_way_out(empty_study: Study) -> None:
    gpu = {"device": "gpu", "name": "local", "cores_per_device": 1}
    many = {"processors": {"usable": [0, 1]}}
    repeated(empty_study, "single", rates=scaled(1000), hardware=gpu, environment=many)
    why = "workers=2: there are 1 gpu device(s) here; choose workers=1"
    for number in (1, 2, 3):
        folder = empty_study.run(
            f"ddp-r{number}", "ddp", workers=2, hardware=gpu, status="skipped", error=why,
            declared={"configuration": "ddp", "repetition": number},
        )  # fmt: skip
        (folder / "environment.json").unlink()
    text = said(empty_study)
    assert text.startswith("cnn on mnist: single. Only single was measured: 1,000 samples/s")
    assert f"3 runs, 3 of each configuration; 3 skipped on this machine ({why})" in text
    # Further cells would be skipped, too.
    assert text.endswith("; the whole study on this machine's cores: `CUDA_VISIBLE_DEVICES= dvc repro -f`.")
