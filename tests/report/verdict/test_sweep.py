"""A sweep over seeds ends with what it means."""

from __future__ import annotations

from src.report import sweep
from tests.report.conftest import Study
from tests.report.verdict.test_verdicts import NOISE


def test_seeds_of_a_sweep_are_repetitions_of_its_speeds(empty_study: Study) -> None:
    folders, words = [], []
    for seed, noise in enumerate(NOISE):
        for strategy, workers, rate in (("single", 1, 1000 * noise), ("ddp", 2, 1700 * noise + 3 * seed)):
            known = {"workers": workers, "seed": seed, "samples_per_second": rate, "accuracy": 0.9}
            folders.append(empty_study.run(f"{strategy}-{seed}", strategy, **known))
            words.append([f"strategy={strategy}", f"seed={seed}"])
    _, (verdict,) = sweep.sweep_result(folders, words)
    assert verdict.title == "cnn on mnist: ddp on 2 devices"
    assert "6 runs, 3 of each configuration" in verdict.sentences[-1].text


def test_a_sweep_of_one_seed_says_how_to_tell_more(empty_study: Study) -> None:
    one = empty_study.run("single", samples_per_second=1000.0)
    two = empty_study.run("ddp", "ddp", workers=2, samples_per_second=1900.0)
    _, (verdict,) = sweep.sweep_result([one, two], [["strategy=single"], ["strategy=ddp"]])
    assert verdict.title == "cnn on mnist: undecided"
    assert "each cell with several seeds, `seed=0,1,2` before all else" in verdict.sentences[-1].text


def test_a_sweep_has_tokens_where_its_runs_have(empty_study: Study) -> None:
    one = empty_study.run("single", samples_per_second=1000.0)
    assert "tokens/s" not in sweep.sweep_result([one], [["strategy=single"]])[0].headings
    two = empty_study.run("ddp", "ddp", workers=2, samples_per_second=1900.0, tokens_per_second=243_200.0)
    table, _ = sweep.sweep_result([one, two], [["strategy=single"], ["strategy=ddp"]])
    cells = [row[table.headings.index("tokens/s")] for _, row in table.rows]
    assert cells == ["-", "243,200"]
