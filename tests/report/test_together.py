"""Several machines' studies in one report: side by side, and with ratios only where one is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from src import aggregate
from src.config import ConfigError
from src.report import study as studies
from src.report import together
from src.report.verdict.objective import objective
from tests.report.conftest import Study
from tests.report.verdict.test_verdicts import repeated, scaled


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Studies of two machines, of which the second is twice as fast and has other software for `ddp`."""
    made = []
    for name, factor in (("lab", 1), ("cloud", 2)):
        study = Study(tmp_path / f"at-{name}")
        study.params.parent.mkdir()
        study.write_params()
        processor = {"processors": {"model": f"CPU of {name}", "count": 2}}
        software = {"software": {"files": {"src/strategies/ddp.py": name}, "libraries": {"python": "3.13.1"}}}
        repeated(study, "single", rates=scaled(1000 * factor), environment=processor)
        repeated(
            study, "ddp", "ddp", workers=2, rates=scaled(1500 * factor), environment=processor | software
        )
        made.append(study.directory.rename(tmp_path / name))
        shutil.rmtree(study.params.parent)
    return made


def test_ratios_stand_within_each_machine(folders: list[Path]) -> None:
    study, runs, rows = together.read(folders)
    assert study["name"] == "lab + cloud"
    assert [run.cell for run in runs if run.cell.endswith("/ddp")] == ["lab/ddp", "cloud/ddp"]
    single = {row["cell"]: row for row in rows}["cloud/single"]
    assert single["baseline"].split() == ["cloud/single", "cloud/single-r2", "cloud/single-r3"]
    view = together.machines_view(rows)
    assert view.headings == ["strategy", "model", "workers", "batch", "lab", "cloud"]
    assert [cells[-2:] for _, cells in view.rows] == [["1,500", "3,000"], ["1,000", "2,000"]]
    assert view.notes == ["Ratios across machines need one that is named: --baseline MACHINE."]


def test_over_a_named_machine_only_the_same_software_has_a_ratio(folders: list[Path]) -> None:
    view = together.machines_view(together.read(folders)[2], "lab")
    assert [cells[-1] for _, cells in view.rows] == ["3,000", "2,000 (2.00)"]
    other, same = view.notes
    assert same == "cloud: names CPU of cloud against CPU of lab."
    assert other.startswith("cloud: no ratio (names CPU of cloud against CPU of lab; other software")


def test_one_page_has_both_and_a_verdict_for_each(
    folders: list[Path], tmp_path: Path, unpictured: None, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "both"
    assert aggregate.main([*map(str, folders), "--study-dir", str(out), "--baseline", "lab"]) == 0
    printed = capsys.readouterr().out
    assert "machines, samples/s (over lab)" in printed and "2,000 (2.00)" in printed
    for name in ("lab", "cloud"):
        assert f"verdict by throughput: cnn on mnist, {name}: " in printed
    assert (out / "report.html").exists() and (out / "tables" / "scaling.csv").exists()


def test_a_wrong_folder_or_machine_is_one_sentence(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be the folder of a study, as results/quick"):
        together.read([tmp_path])
    with pytest.raises(ConfigError, match="another folder is called lab, too"):
        together.read([folders[0], folders[0]])
    rows = together.read(folders)[2]
    with pytest.raises(ConfigError, match="--baseline cluod: must be one of lab, cloud; did you mean cloud"):
        together.machines_view(rows, "cluod")


def test_what_all_studies_ask_for_is_asked_for_of_the_whole(folders: list[Path]) -> None:
    def keep(folder: Path, **wishes: object) -> None:
        known = studies.of_folder(folder)
        (folder / "tables").mkdir(exist_ok=True)
        (folder / "tables" / studies.KEPT).write_text(json.dumps({**known, **wishes}))

    for folder in folders:
        keep(folder, aim="memory", limit={"hours": 2})
    whole = together.read(folders)[0]
    assert (whole["aim"], whole["limit"], whole["name"]) == ("memory", {"hours": 2}, "lab + cloud")
    assert objective(whole).aim.name == "memory"
    keep(folders[0], aim="energy")
    assert objective(together.read(folders)[0]).aim.name == "throughput"
