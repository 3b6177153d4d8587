"""A machine that is so many times as fast is predicted, and only that of it changes."""

from __future__ import annotations

import pytest

from src.config.mistakes import ConfigError
from src.predict import what_if
from src.predict.calibrate import Fit
from src.predict.row import parse
from src.predict.step import Step

ROW = {
    "device": "k80", "devices": "16", "network": "ethernet_1g", "model": "m", "global_batch": "160",
    "one_device_samples_per_second": "10", "gradient_bytes": "1e9", "exchange": "ring",
}  # fmt: skip


def test_a_network_twice_as_fast_and_devices_that_compute_faster() -> None:
    step, fit = Step(parse(ROW)), Fit()
    plain = fit.parts(step)
    network = what_if.changed(fit, what_if.parse(["network=2x"])).parts(step)
    assert network.compute == plain.compute and 0 < network.exchange < plain.exchange / 2
    both = what_if.changed(fit, what_if.parse(["compute=1.25", "network=1x"])).parts(step)
    assert both.compute == pytest.approx(plain.compute / 1.25) and both.exchange > plain.exchange
    # Rings within a node aren't what is waited for.
    assert what_if.changed(fit, what_if.parse(["link=2x"])).parts(step) == plain
    assert fit == Fit()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nework=2x"], "nework=2x: there are compute, network, link, .*; did you mean network"),
        (["network=fast"], "network=fast: say how many times as fast, as network=2x"),
        (["network=0x"], "network=0x: say how many"),
        (["network=-1"], "network=-1: say how many"),
        (["network"], "network: say how many"),
        (["link=2", "link=3"], "link is there twice"),
    ],
)
def test_what_is_no_change_is_a_line(words: list[str], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        what_if.parse(words)
