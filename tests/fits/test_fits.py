"""What fits is told before anything runs, and is what a look at that very step tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from src.config.mistakes import ConfigError
from src.fits import __main__ as fits
from src.predict.asked import devices
from src.predict.held import Held, reasons
from tests.support import ROOT, typed

WORDS = ["model=gpt", "model.layers=1", "dataset=gcide", "dataset.source=generated", "optimizer.name=adamw"]
# Steps by themselves, of other samples and devices than a law is made of, and what the law says of them.
LOOK = """
import json, sys
from src.predict import asked, looks
from src.runtime.torch import predicted_memory, setup
words = sys.argv[1:]
for strategy, first, count, samples, parts in (
    ("single", 1, 1, 7, 1), ("ddp", 2, 4, 7, 2), ("fsdp", 2, 6, 5, 1), ("tensor_parallel", 2, 2, 7, 1)
):
    look = looks.LOOKS[strategy]
    own = looks.config_of(words, strategy, count, samples, parts)
    alone = look.look(own, looks.ModelFacts.of(own, look).division)
    question = asked.read([*words, "hardware=k80"])
    config = looks.config_of(words, strategy, first, 2, parts)
    every = dict(looks.looked_at(question, strategy, sorted({first, count}), config))
    # Two moments may be nearly as full as each other: all of them are compared.
    by_law, seen = every[count].law.sizes(count, samples), alone.live.sizes
    off = abs(by_law - seen).max() / seen.sum(axis=1).max()
    assert by_law.shape == seen.shape and off < 0.01, (strategy, off)
    # What it computes, and what it exchanges, too.
    by_law, seen = every[count].traces.at(samples, count), alone.trace
    sizes = seen.kernels.values.sum(axis=0).clip(1)
    off = abs(by_law.kernels.values - seen.kernels.values).sum(axis=0) / sizes
    assert off.max() < 0.01, (strategy, off)
    assert len(by_law.marks) == len(seen.marks), strategy
    for one, other in zip(by_law.marks, seen.marks):
        assert abs(one.size - other.size) <= 0.02 * other.size, (strategy, one, other)
# A run of so many samples predicts its own step by adding up passes; here they are of a GPU's operations.
with looks.context_of(looks.config_of(words, "ddp", 4, 300, 1)) as (context, _), looks.GpuOperators():
    model, task = setup.build(context, lambda _: None), setup.make_task(context)
    memory = predicted_memory.CopyMemory(buckets=True)
    summed = predicted_memory.of_copy(context, model, task, looks.CPU, memory).most()
question = asked.read([*words, "hardware=k80"])
((_, only),) = looks.looked_at(question, "ddp", [4], looks.config_of(words, "ddp", 4, 2, 1))
print(json.dumps([summed, only.law.most(4, 300)]))
"""


def run(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_law_is_what_a_look_at_that_very_step_tells() -> None:
    looked = run("-c", LOOK, *WORDS)
    assert looked.returncode == 0, looked.stderr
    summed, by_law = json.loads(looked.stdout.splitlines()[-1])
    for part, size in summed.items():
        assert by_law[part] == pytest.approx(size, abs=0.01 * sum(summed.values())), part


@pytest.mark.slow
def test_the_command_says_what_fits_and_why_not(tmp_path: Path) -> None:
    words = [*WORDS, "strategy=ddp", "devices=2,4,5", "batch=32", "hardware=k80"]
    said = run("-m", "src.fits", *words, "--json", cwd=tmp_path)
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
        Held("ddp", count, reason=f"batch=6 can't be divided by {count} devices; {count} samples")
        for count in (4, 8)
    ]
    assert reasons([*rows, Held("ddp", 2)]) == [
        "ddp on 4, 8: batch=6 can't be divided by 4 devices; 4 samples"
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "hardware=: name a data sheet"),
        (["hardware=a100"], "hardware=a100: nobody has described it"),
        (["hardware=k80", "strategy=pipedream"], "strategy=pipedream: can't be looked at before it runs"),
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
def test_a_mistake_is_a_line(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(fits.main, "model=cnn", *words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and line in said, said


def test_a_mistake_that_is_typed_is_a_line() -> None:
    completed = run("-m", "src.fits", "model=cnnn", "hardware=k80")
    assert completed.returncode == 2 and completed.stderr.count("\n") == 1, completed.stderr
