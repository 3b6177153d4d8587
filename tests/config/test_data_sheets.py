"""A data sheet describes a device for predictions; nothing runs on it."""

from __future__ import annotations

import pytest

from src.config import command_line, compose, data_sheets
from src.config.mistakes import ConfigError
from src.predict import sheets
from tests.support import ROOT


def test_a_run_on_a_data_sheet_is_refused_in_a_line() -> None:
    for word in ("hardware=a100_80gb", "hardware=ethernet_10g"):
        with pytest.raises(ConfigError, match=rf"^{word}: is a data sheet, .*; nothing runs on it$"):
            compose.cells(command_line.parse([word]))


def test_data_sheets_are_no_choice_of_hardware() -> None:
    with pytest.raises(ConfigError, match=r"hardware=nowhere: no such hardware; there are .*local") as error:
        compose.cells(command_line.parse(["hardware=nowhere"]))
    assert not any(name in str(error.value) for name in data_sheets.names())


@pytest.mark.parametrize("name", data_sheets.names())
def test_each_sheet_is_read_and_has_a_source(name: str) -> None:
    if name in data_sheets.names(data_sheets.DEVICE):
        assert sheets.device(name).peak["fp32"] > 0
    else:
        assert sheets.network(name).bandwidth > 0
    first, second, *_ = (ROOT / "conf" / "hardware" / f"{name}.yaml").read_text().splitlines()
    assert first.endswith("a data sheet, for predictions; nothing runs on it.") and second.startswith("# ")


def test_a_device_that_nobody_described_is_answered_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"device=a100: nobody has described it; .*mean a100_"):
        sheets.device("a100")
    with pytest.raises(ConfigError, match=r"network=\.\./local: nobody has described it"):
        sheets.network("../local")
    assert sheets.network("12.5").bandwidth == 12.5
    with pytest.raises(ConfigError, match=r"network=-1: must be GB/s"):
        sheets.network("-1")
