"""What fits is told before anything runs, and is what a look at that very step tells."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from src.config.mistakes import ConfigError
from src.fits.__main__ import devices, reasons
from src.fits.rows import Row
from tests.support import ROOT

WORDS = ["model=gpt", "model.layers=1", "dataset=gcide", "dataset.source=generated", "optimizer.name=adamw"]
# Steps by themselves, of other samples and devices than a law is made of, and what the law says of them.
LOOK = """
import json, sys
from src.fits import looks
from src.runtime.torch import predicted_memory, setup
words, found = sys.argv[1:], {}
for strategy, first, count, samples, parts in (
    ("single", 1, 1, 7, 1), ("ddp", 2, 4, 7, 2), ("fsdp", 2, 6, 5, 1), ("tensor_parallel", 2, 2, 7, 1)
):
    look, _ = looks.LOOKS[strategy]
    alone = look(looks.config_of(words, strategy, count, samples, parts)).most()
    laws = {n: law for n, law, _ in looks.laws(words, strategy, sorted({first, count}), parts)}
    found[strategy] = alone, laws[count].most(count, samples)
# A run of so many samples predicts its own step by adding up passes.
with looks._context(looks.config_of(words, "ddp", 4, 300, 1)) as (context, _):
    model, task = setup.build(context, lambda _: None), setup.make_task(context)
    memory = predicted_memory.CopyMemory(buckets=True)
    summed = predicted_memory.of_copy(context, model, task, looks.CPU, memory).most()
((_, law, _),) = looks.laws(words, "ddp", [4], 1)
found["ddp, 300 samples"] = summed, law.most(4, 300)
print(json.dumps(found))
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_law_is_what_a_look_at_that_very_step_tells() -> None:
    looked = run("-c", LOOK, *WORDS)
    assert looked.returncode == 0, looked.stderr
    for strategy, (alone, by_law) in json.loads(looked.stdout.splitlines()[-1]).items():
        for part, size in alone.items():
            assert by_law[part] == pytest.approx(size, abs=0.01 * sum(alone.values())), (strategy, part)


@pytest.mark.slow
def test_the_command_says_what_fits_and_why_not() -> None:
    words = [*WORDS, "strategy=ddp", "devices=2,4,5", "batch=32", "hardware=k80"]
    said = run("-m", "src.fits", *words, "--json")
    assert said.returncode == 0, said.stderr
    two, four, five = json.loads(said.stdout)
    assert (two["samples"], four["samples"], two["fits"]) == (16, 8, True)
    assert two["parts"]["weights"] == four["parts"]["weights"] and two["bytes"] > four["bytes"]
    assert 1000 < two["most_samples"] < 12 * 2**30 / (two["bytes"] - four["bytes"]) * 8
    assert five["bytes"] is None and "batch=32 can't be divided by 5 devices" in five["reason"]


def test_numbers_of_devices() -> None:
    assert devices("1..64") == [1, 2, 4, 8, 16, 32, 64] and devices("6,2,3..9") == [2, 4, 6, 8]
    for text in ("", "0", "a", "1..", "3..3", "8-16", "99999"):
        with pytest.raises(ConfigError, match=f"devices={text}: must be"):
            devices(text)


def test_one_reason_for_several_numbers_of_devices_is_one_line() -> None:
    rows = [
        Row("ddp", count, reason=f"batch=6 can't be divided by {count} devices; {count} samples")
        for count in (4, 8)
    ]
    assert reasons([*rows, Row("ddp", 2)]) == [
        "ddp on 4, 8: batch=6 can't be divided by 4 devices; 4 samples"
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "hardware=: name a data sheet"),
        (["hardware=a100"], "hardware=a100: nobody has described it"),
        (["hardware=k80", "strategy=pipeline"], "strategy=pipeline: can't be looked at before it runs"),
        (["hardware=k80", "strategy=ddp", "batch_shares=[1,3]"], "batch_shares="),
        (["hardware=k80", "strategy=ddp", "strategy.compression=topk"], "compression=topk: isn't looked at"),
        (["hardware=k80", "strategy=single", "strategy.compile=true"], "compile=True: isn't looked at"),
        (["hardware=k80", "hardware=p40"], "hardware=p40: stands there twice"),
        (["hardware=k80", "-m", "batch=32,64"], "-m: one configuration is looked at"),
        (["hardware=k80", "devices=none"], "devices=none: must be numbers"),
        (["hardware=k80", "model=cnnn"], "model=cnnn: no such model"),
        (["hardware=k80", "optimizer.lrr=1"], "optimizer.lrr=1: no such key"),
        (["hardware=ethernet_1g"], "hardware=ethernet_1g: nobody has described it"),
    ],
)
def test_a_mistake_is_a_line(words: list[str], line: str) -> None:
    completed = run("-m", "src.fits", "model=cnn", *words)
    assert completed.returncode == 2 and completed.stderr.count("\n") == 1, completed.stderr
    assert line in completed.stderr
