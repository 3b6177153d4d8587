"""A table is read while another process writes it: whole rows, each once."""

from __future__ import annotations

from pathlib import Path

from src.run.tables import GrowingTable, write_table


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_rows_come_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    table = GrowingTable(path)
    assert table.read() == []
    append(path, "step,loss\n1,2.0\n2,")
    assert table.read() == [{"step": 1, "loss": 2.0}]
    append(path, "1.5\n3,1.0\n")
    assert table.read() == [{"step": 2, "loss": 1.5}, {"step": 3, "loss": 1.0}]
    assert table.read() == []
    assert not table.replaced


def test_a_file_in_the_place_of_the_former_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    append(path, "step,loss\n1,2.0\n2,1.5\n3,1.0\n")
    table = GrowingTable(path)
    assert len(table.read()) == 3
    # A restarted rank keeps its steps up to the checkpoint, and may be beyond them before anybody looks.
    rows = [{"step": step, "loss": 9 - step} for step in range(1, 7)]
    write_table(path, ("step", "loss"), rows)
    assert table.read() == rows
    assert table.replaced
    assert table.read() == []
    assert not table.replaced
