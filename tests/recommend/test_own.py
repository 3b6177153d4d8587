"""`python -m src.recommend --profile ...`: choices on one's own devices, on evidence that is made up."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from src.predict.own.cost_profile import Point
from src.recommend import __main__ as command
from src.recommend import noise, own, page
from tests.predict.own import made
from tests.predict.own.test_command import DDP, RUN, answer
from tests.recommend.test_recommend import SPARSE
from tests.recommend.test_to_target import study
from tests.support import ROOT, config

ASK = ("--profile", "profile", "model=mlp", "dataset=synthetic", "hardware.device=cpu", "batch=8")
FEW = "strategy=single,ddp"


def profile(folder: Path, *points: Point, seconds_per_mib: float = 0.001) -> None:
    (folder / "profile").mkdir(exist_ok=True)
    made.profile(*points, seconds_per_mib=seconds_per_mib).write(folder / "profile/profile.json")


def measured(folder: Path, name: str, seconds: float, *words: str, **figures: Any) -> None:
    """A finished run of a step's seconds; `figures` are others of its metrics."""
    answer(folder / "runs" / name, seconds, *words)
    path = folder / "runs" / name / "metrics.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **figures}))


SINGLE = ("strategy=single", "workers=1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to type in, with a profile of a second a sample alone and beside another device."""
    monkeypatch.chdir(tmp_path)
    profile(tmp_path, made.steps_point(config(*RUN, *SINGLE), 1.0), made.steps_point(config(*RUN, *DDP), 1.0))
    return tmp_path


def asked(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    """The answer in JSON for one batch, with why others aren't predicted."""
    keys = {word.partition("=")[0] for word in words}
    given = [word for word in (*ASK, FEW) if word.partition("=")[0] not in keys]
    assert command.main([*given, *words, "--json"]) == status
    answer, rest = json.loads(capsys.readouterr().out)
    return {**answer, **rest}


def test_two_devices_that_exchange_quickly_are_chosen(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*ASK, "--json"]) == 0
    answer, rest = json.loads(capsys.readouterr().out)
    found = {**answer, **rest}
    assert found["chosen"]["strategy"] == "ddp" and found["chosen"]["basis"] == "profile"
    # Eight seconds and an update of one alone, four and one of two; the exchange is of no account.
    assert found["one_device"]["parts"]["compute"] == pytest.approx(9.0)
    assert any(each.startswith("That is 1.7") for each in found["sentences"])
    assert any("no run calibrates it" in each for each in found["sentences"])
    commands = [each for each in found["not_predicted"] if "python -m src.profile" in each]
    assert any(
        "strategy=model_split,pipeline workers=2 batch=8 microbatches=2,4,8" in each for each in commands
    )
    assert "predictions.csv" in [path.name for path in folder.iterdir()]


def test_two_devices_that_exchange_for_longer_than_they_save_are_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile(
        folder,
        made.steps_point(config(*RUN, *SINGLE), 1.0),
        made.steps_point(config(*RUN, *DDP), 1.0),
        seconds_per_mib=9.0,
    )
    found = asked(capsys)
    assert found["chosen"]["strategy"] == "single"
    assert "Nothing should be distributed: more devices aren't faster, as far as known." in found["sentences"]


def test_what_was_measured_counts_more_than_what_is_predicted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        measured(folder, f"ddp{number}", 9.9 + 0.1 * number, *DDP)
        measured(folder, f"single{number}", 9.0, *SINGLE)
    found = asked(capsys, "--runs", "runs")
    assert (found["chosen"]["strategy"], found["chosen"]["basis"]) == ("single", "measured")
    assert len(found["chosen"]["runs"]) == 3
    (ddp,) = found["behind"]
    assert ddp["seconds"] == pytest.approx(10.0) and ddp["basis"] == "measured"
    assert any(each.startswith("It rests on runs/single0") for each in found["sentences"])


def test_what_was_measured_needs_no_profile(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile(folder, made.steps_point(config(*RUN, *SINGLE), 1.0))
    for number in range(3):
        measured(folder, f"ddp{number}", 5.0 + 0.1 * number, *DDP)
    found = asked(capsys, "--runs", "runs")
    assert (found["chosen"]["strategy"], found["chosen"]["basis"]) == ("ddp", "measured")
    assert found["chosen"]["parts"] is None and found["not_predicted"] == []


def test_few_repetitions_tell_less_than_many(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 2 % apart, with noise of 1.4 %: t(0.9, 2) = 1.89 standard errors of that are 2.6 %, 1.28 would be 1.8 %.
    for number, (ddp, single) in enumerate(((10.0, 10.2), (10.2, 10.4))):
        measured(folder, f"ddp{number}", ddp, *DDP)
        measured(folder, f"single{number}", single, *SINGLE)
    found = asked(capsys, "--runs", "runs")
    assert found["chosen"]["strategy"] == "single"
    assert [each["strategy"] for each in found["as_good"]] == ["ddp"]


def test_the_noise_of_repetitions_is_pooled() -> None:
    # log 10, log 11 and log 9, log 9: squares 2 (log 1.1 / 2)^2 and 0, with two degrees of freedom.
    answers = {"a": [(0.0, 10.0, ""), (0.0, 11.0, "")], "b": [(0.0, 9.0, ""), (0.0, 9.0, "")]}
    spread, freedom = noise.noise_of(answers)
    assert freedom == 2 and spread == pytest.approx(math.log(1.1) / 2)
    assert noise.noise_of({"a": [(0.0, 10.0, "")]}) == (noise.ONCE, 0)


def test_of_a_tie_within_noise_one_device_is_chosen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, wobble in enumerate((0.97, 1.0, 1.03)):
        measured(folder, f"ddp{number}", 8.8 * wobble, *DDP)
        measured(folder, f"single{number}", 9.0 * wobble, *SINGLE)
    found = asked(capsys, "--runs", "runs")
    assert found["chosen"]["strategy"] == "single"
    assert [each["strategy"] for each in found["as_good"]] == ["ddp"]


def test_a_disturbed_run_counts_for_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured(folder, "ddp", 30.0, *DDP, cpu_wait_fraction=0.5, steal_fraction=0.0)
    found = asked(capsys, "--runs", "runs")
    assert found["chosen"]["strategy"] == "ddp" and found["chosen"]["basis"] == "profile"
    assert any("1 run that other processes disturbed count" in each for each in found["sentences"])


def test_runs_that_wait_for_data_are_said_to(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        measured(folder, f"ddp{number}", 20.0, *DDP, input_wait_fraction=0.7)
        measured(folder, f"single{number}", 20.0, *SINGLE, input_wait_fraction=0.7)
    found = asked(capsys, "--runs", "runs")
    assert found["chosen"]["strategy"] == "single" and found["chosen"]["bound"] == "input"
    assert any(each.startswith("Reading data binds it") for each in found["sentences"])


def test_unequal_devices_get_parts_by_their_speed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [made.steps_point(config(*RUN, *DDP, f"batch={2 * each}"), 1.0) for each in (8, 24, 40)]
    profile(folder, made.steps_point(config(*RUN, *SINGLE, "batch=48"), 1.0), *sizes)
    found = asked(capsys, "hardware.speeds=[1,0.5]", "batch=48")
    # 24 samples take 48 s at half the speed; 32 and 16 take 32 s each.
    assert (found["chosen"]["strategy"], found["chosen"]["batch_shares"]) == ("ddp", "auto")
    # At half the speed 24 samples take as long as 48 do on the faster one alone.
    alone, equal = found["behind"]
    assert equal["seconds"] > 1.2 * found["chosen"]["seconds"]
    # The faster one alone, whose command has no speeds of two.
    assert alone["strategy"] == "single" and "speeds" not in alone["command"]
    assert "batch_shares=auto" in found["chosen"]["command"]


def test_the_cheapest_within_a_deadline(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "prices.yaml").write_text(
        "{currency: EUR, date: 2026-11-29, source: made up, device_hour: {cpu: 0.1}}"
    )
    found = asked(capsys, "prices=prices.yaml", "aim=cost")
    assert found["chosen"]["strategy"] == "single"
    alone, two = found["one_device"], found["behind"][0]
    assert alone["cost"] == pytest.approx(0.1 * alone["hours"]) and two["cost"] == pytest.approx(
        0.2 * two["hours"]
    )
    late = asked(capsys, "prices=prices.yaml", "aim=cost", f"limit.hours={0.9 * alone['hours']}")
    assert late["chosen"]["strategy"] == "ddp" and "takes" in late["refused"][0]
    none = asked(capsys, "limit.hours=0.0001", status=1)
    assert none["chosen"] is None and none["sentences"][0] == "Nothing can be chosen."


def test_several_batches_have_an_answer_each_and_a_table(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [made.steps_point(config(*RUN, *each, "batch=16"), 1.0) for each in (SINGLE, DDP)]
    points += [made.steps_point(config(*RUN, *each), 1.0) for each in (SINGLE, DDP)]
    profile(folder, *points)
    assert command.main([*ASK[:-1], FEW, "batch=8,16"]) == 0
    said = capsys.readouterr().out
    assert said.count("for throughput:") == 2 and said.count("All ways, the best first") == 2
    assert said.count("Type: python -m src.train model=mlp") == 2


def test_a_page_has_the_answer_and_what_is_predicted_and_measured(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(folder, "ddp", 6.0, *DDP)
    assert command.main([*ASK, FEW, "--runs", "runs", "--page", "answer.html"]) == 0
    capsys.readouterr()
    text = (folder / "answer.html").read_text()
    assert "mlp on synthetic, batch 8, on up to 2 devices, for throughput" in text
    assert text.count("<svg") == 1 and "default-src 'none'" in text and "<script" not in text
    assert "<strong>ddp shared memory on 2 devices</strong>" in text
    # Six seconds were measured for eight samples; the profile says five.
    assert "<td>1.333</td>" in text and "measured samples/s 1.3333" in text and "<td>measured</td>" in text
    assert "<code>python -m src.train model=mlp" in text


def test_a_page_says_of_what_an_interval_is(tmp_path: Path) -> None:
    shown = page.Shown("ddp", "ddp", 2, 9.0, 3.0, 4.0, predicted=3.5, measured=True, of_prediction=True)
    page.write(tmp_path / "answer.html", [page.Section("title", [], "", "", [shown])], [])
    assert "<td>predicted 3 to 4</td><td>measured</td>" in (tmp_path / "answer.html").read_text()


def test_a_curve_has_the_fastest_way_on_each_number_of_devices() -> None:
    ways = [
        page.Shown("ddp", f"ddp {count}, {rate}", count, rate, rate / 2, rate * 2)
        for count, rate in ((4, 3.0), (2, 1.5), (4, 2.0))
    ]
    assert [way.rate for way in page.curves(ways)["ddp"]] == [1.5, 3.0]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("aim=memory",),
            "aim=memory: isn't predicted from a profile; throughput, time_to_accuracy, cost are",
        ),
        (("workers=2",), "workers=2: say devices=2"),
        (("scaling=weak",), "scaling=weak: ways are compared at one global batch"),
        (("model=mlp,cnn",), "several values are for batch, devices and strategy; say one of all others"),
        (("prices=gpu.yaml",), "prices: no price of cpu; there are prices of gpu"),
        (("--measured", "--runs", "runs", "aim=memory"), "--measured and --profile: say one of them"),
        (("strategy.tied=reduce",), "strategy.tied=reduce: it is chosen here; leave it away"),
        (("limit.memory_gib=2",), "limit.memory_gib=2: memory isn't predicted from a profile"),
        (("strategy=dpp",), "strategy=dpp: there is no such one; did you mean ddp?"),
        (("batch=10000000",), "batch=10000000: the dataset has"),
        (("hardware=a100_80gb",), "hardware=a100_80gb: is a data sheet"),
        (("limit.cost=5",), "limit.cost=5: needs what a device costs: prices=FILE"),
        (("aim=time_to_accuracy",), "aim=time_to_accuracy: needs the steps to a target: steps_from="),
        (("--measured",), "--measured and --profile: say one of them"),
        (("--measured", "--page", "answer.html"), "--measured and --profile: say one of them"),
        (("--study-dir", "results/quick"), "--params and --study-dir: are of --measured"),
    ],
)
def test_a_mistake_is_a_line(
    words: tuple[str, ...], line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "gpu.yaml").write_text(
        "{currency: EUR, date: 2026-11-29, source: made up, device_hour: {gpu: 2.0}}"
    )
    given = [
        each
        for each in (*ASK, FEW)
        if not any(each.startswith(f"{word.partition('=')[0]}=") for word in words)
    ]
    assert command.main([*given, *words]) == 2
    said = capsys.readouterr().err
    assert line in said and said.count("\n") == 1


@pytest.mark.slow
def test_a_model_that_a_strategy_refuses_is_no_way(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, mnist: None
) -> None:
    (folder / "sparse_words.py").write_text(SPARSE)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{folder}")
    monkeypatch.syspath_prepend(str(folder))
    words = ("model=custom", "model.path=sparse_words.build", "dataset=mnist")
    found = asked(capsys, *words, "strategy=ddp,mpi", status=1)
    # The profile has nothing of it either, but that isn't why.
    assert [each.partition(":")[0] for each in found["not_predicted"]] == ["ddp", "mpi"]
    assert all("is sparse" in each for each in found["not_predicted"])


def test_no_evidence_at_all_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main([*ASK]) == 2
    said = capsys.readouterr().err
    assert "profile" in said and said.count("\n") == 1
    assert command.main(["--measured", "--runs", "runs", "aim=memory"]) == 2
    assert capsys.readouterr().err == "error: --runs runs: is of --profile\n"


def test_a_batch_that_nothing_divides_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile(folder, made.steps_point(config(*RUN, *SINGLE, "batch=7"), 1.0))
    found = asked(capsys, "batch=7")
    assert found["chosen"]["strategy"] == "single"
    assert [each.partition(":")[0] for each in found["not_predicted"]] == ["ddp"]


def test_a_number_of_micro_batches_is_that_of_every_way(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile(folder, made.operations_point(config(*RUN, "strategy=pipeline", "microbatches=4")))
    found = asked(capsys, "strategy=pipeline", "microbatches=4")
    assert "microbatches=4" in found["chosen"]["command"] and found["as_good"] == found["behind"] == []
    alone = asked(capsys, "strategy=single", "microbatches=4", status=1)
    assert "microbatches=4" in alone["not_predicted"][0]


def test_what_learns_otherwise_has_no_known_steps_to_a_target(
    folder: Path, capsys: pytest.CaptureFixture[str], mnist: None
) -> None:
    study(folder / "found")
    words = ("model=cnn", "dataset=mnist", "hardware.device=cpu", "steps_from=found", "batch=128")
    found = asked(capsys, *words, "strategy=local_sgd", "aim=time_to_accuracy", status=1)
    assert "local_sgd: doesn't learn as one device does" in found["not_predicted"][0]


def test_a_profile_of_another_machine_is_a_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "profile/profile.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "machine": "another one"}))
    assert command.main([*ASK]) == 2
    said = capsys.readouterr().err
    assert "profile.json: is of another machine (another one), and choices are for this one" in said


def test_a_ledger_that_cannot_be_read_is_said_before_anything_is_looked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "predictions.csv").write_text("mine\n")
    assert command.main([*ASK, FEW]) == 2
    assert "predictions.csv: isn't the ledger of predictions" in capsys.readouterr().err
    # An empty one is none yet.
    (folder / "predictions.csv").write_text("")
    assert command.main([*ASK, FEW]) == 0


def test_a_choice_that_learns_otherwise_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    averaged = ("strategy=local_sgd", "workers=2")
    for name, words, seconds in (("ddp", DDP, 8.0), ("averaged", averaged, 5.0), ("single", SINGLE, 9.0)):
        measured(folder, name, seconds, *words)
    # Every eighth of its steps is another one.
    steps = "".join(f"0,{step},5.0\n" for step in range(1, 41))
    (folder / "runs/averaged/steps.csv").write_text(f"rank,step,seconds\n{steps}")
    found = asked(capsys, "strategy=single,ddp,local_sgd", "--runs", "runs")
    assert found["chosen"]["strategy"] == "local_sgd" and found["chosen"]["learns_otherwise"]
    said = "It doesn't learn as one device does, and may need more samples; the best that does is ddp"
    assert any(each.startswith(said) for each in found["sentences"])


def test_the_command_that_profiles_what_is_missing_is_one_that_runs() -> None:
    def sweeps(*places: tuple[int, int, int]) -> list[dict[str, list[Any]]]:
        configs = [
            config(*RUN, "strategy=pipeline", f"workers={count}", f"batch={batch}", f"microbatches={micro}")
            for count, batch, micro in places
        ]
        return own._sweeps(configs)

    (together,) = sweeps((2, 8, 2), (2, 8, 4), (2, 16, 2), (2, 16, 4))
    assert together["batch"] == [8, 16] and together["microbatches"] == [2, 4]
    # Four divides eight and not ten: a sweep of all would be refused.
    apart = sweeps((2, 8, 2), (2, 8, 4), (2, 10, 2), (4, 8, 4))
    assert [each["workers"] for each in apart] == [[2], [2], [4]]
    assert [each["microbatches"] for each in apart] == [[2, 4], [2], [4]]


def test_a_limit_shows_the_hours_that_it_is_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "limit.hours=1000")
    assert found["limits"] == {"limit.hours": 1000} and "in all" in found["sentences"][0]
    assert (
        found["chosen"]["hours_interval"][0] < found["chosen"]["hours"] < found["chosen"]["hours_interval"][1]
    )
