"""A mistake in a command line is answered at once, in one line, and leaves nothing behind."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from src.config import Config, command_line, compose, import_paths
from src.config.mistakes import ConfigError, nearest
from src.config.run_config import CONF
from tests.support import answer

SECONDS = 2.0
TRIES = 3
# More devices than a machine has, and a batch that they can share.
MANY = ["strategy=ddp", "workers=100000", "batch=100000"]

MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    # what is typed, and what the line says
    "strategy": (["strategy=dpp"], ["strategy=dpp", "single", "did you mean ddp?"]),
    "strategy's case": (["strategy=DDP"], ["strategy=DDP", "did you mean ddp?"]),
    "model": (["model=resnet81"], ["model=resnet81", "cnn", "did you mean resnet18?"]),
    "dataset": (["dataset=fasion_mnist"], ["mnist", "did you mean fashion_mnist?"]),
    "hardware": (["hardware=locale"], ["hardware=locale", "did you mean local?"]),
    "empty name": (["strategy="], ["strategy=", "there are capacity, ddp"]),
    "name of no text": (["dataset=[mnist]"], ["dataset=[mnist]", "must name a file of conf/dataset/"]),
    "key": (["btach=64"], ["btach=64", "did you mean batch?"]),
    "nested key": (["optimizer.momentun=0.5"], ["optimizer.momentun", "did you mean optimizer.momentum?"]),
    "key without effect": (
        ["optimizer.name=adam", "optimizer.momentum=0.5"],
        ["optimizer.momentum=0.5", "optimizer.name=adam takes none", "optimizer.name=sgd"],
    ),
    "output of a Keras model": (
        ["task.output=logits", "strategy=tf_single"],
        ["task.output=logits: picks an output of a torch model, and strategy=tf_single trains Keras models"],
    ),
    "option": (["model=mlp", "model.hiden=12"], ["model=mlp has", "did you mean model.hidden?"]),
    "option of another": (["model.hidden=12"], ["model=cnn", "no options"]),
    "option of any model": (["model=custom", "model.pth=x.y"], ["model=custom has", "model.path?"]),
    "mapping of options": (["model=custom", "model.options={a: 1}"], ["+model.options.name=value"]),
    "fixed option": (["strategy.entry=x.y"], ["strategy.entry=x.y", "fixed in conf/strategy/"]),
    "fixed reference": (
        ["strategy.reference=false"],
        ["strategy.reference=false", "fixed in conf/strategy/"],
    ),
    "added key": (["+batches=64"], ["+batches=64", "can't be added"]),
    "removed key": (["~batch"], ["~batch", "can't be added or removed"]),
    "no key": (["=64"], ["=64", "give key=value"]),
    "no value": (["ddp"], ["ddp", "key=value"]),
    "open quote": (['batch="64'], ['batch="64', "key=value"]),
    "flag": (["--multi", "batch=64"], ["--multi", "did you mean --multirun?"]),
    "flag for a key": (["--batch=64"], ["--batch", "no such flag"]),
    "flag without value": (["--config-dir"], ["--config-dir", "expected one argument"]),
    "flag's folder": (["--config-dir", "nowhere"], ["nowhere", "no such folder"]),
    "a sweep of a shown run": (["--cfg", "job", "-m", "batch=64,128"], ["--cfg", "shows one run"]),
    "flag's choice": (["--cfg", "nothing"], ["--cfg", "nothing", "job"]),
    "flag past the checks": (["--config-name=other"], ["--config-name", "no such flag"]),
    "help on a wrong name": (["--help", "strategy=dpp"], ["did you mean ddp?"]),
    "whole number": (["batch=many"], ["batch=many", "a whole number"]),
    "fraction": (["epochs=1.5"], ["epochs=1.5", "a whole number"]),
    "number": (["optimizer.lr=fast"], ["optimizer.lr=fast", "a number"]),
    "infinite": (["optimizer.lr=inf"], ["optimizer.lr=inf", "a number"]),
    "mapping": (["optimizer=5"], ["optimizer=5", "mapping"]),
    "text": (["model=custom", "model.path=5"], ["model.path=5", "a text"]),
    "truth": (["overwrite=maybe"], ["overwrite=maybe", "true or false"]),
    "zero": (["workers=0"], ["workers=0", "at least 1"]),
    "below": (["optimizer.lr=-1"], ["optimizer.lr=-1", "above 0"]),
    "above": (["target_accuracy=92"], ["target_accuracy=92", "at most 1"]),
    "choice": (["precision=fp16"], ["precision=fp16", "fp32, bf16"]),
    "option's choice": (["strategy=ddp", "strategy.backend=mpi"], ["strategy.backend=mpi", "gloo"]),
    "option's range": (["model=mlp", "model.dropout=1"], ["model.dropout=1", "at most 0.99"]),
    "dataset's range": (["dataset.limit=0"], ["dataset.limit=0", "at least 1"]),
    "workers of single": (["workers=2"], ["workers=2", "single takes exactly 1"]),
    "batch to share": (
        ["strategy=ddp", "workers=2", "batch=127"],
        ["batch=127", "workers x microbatches", "2 x 1", "the nearest is 126"],
    ),
    "batch to split": (["microbatches=3"], ["batch=128", "1 x 3", "the nearest is 126"]),
    "batch to pipe": (
        ["strategy=pipeline", "workers=1", "batch=127"],
        ["batch=127", "workers x microbatches", "1 x 4", "the nearest is 124"],
    ),
    "memory for which to compute again": (
        ["strategy=pipeline", "strategy.recompute=selective"],
        ["strategy.recompute=selective", "needs strategy.memory_gib", "strategy.recompute=full"],
    ),
    "compiled and computed again": (
        [
            "strategy=pipeline",
            "strategy.recompute=selective",
            "strategy.memory_gib=1",
            "strategy.compile=true",
        ],
        ["strategy.recompute=selective", "strategy.compile=true", "strategy.recompute=full"],
    ),
    "tensors that can't be followed": (
        ["strategy=parameter_server", "memory_tracker=true"],
        ["memory_tracker=true", "parameter_server", "leave it away"],
    ),
    "tensors followed in a timed step": (
        ["memory_tracker=true", "hardware.warmup_steps=2"],
        ["hardware.warmup_steps=2", "memory_tracker=true", "3 at least"],
    ),
    "compiled tensors": (
        ["memory_tracker=true", "strategy.compile=true"],
        ["memory_tracker=true", "strategy.compile=false"],
    ),
    "partition": (["strategy=pipeline", "strategy.partition=tme"], ["partition=tme", "did you mean time?"]),
    "partition's items": (
        ["strategy=pipeline", "strategy.partition=[1,-2]"],
        ["strategy.partition=[1, -2]", "numbers above 0, or names"],
    ),
    "partition's shares": (
        ["strategy=pipeline", "workers=1", "strategy.partition=[140,230]"],
        ["has 2 entries", "workers=1 need 1"],
    ),
    "partition's names": (
        ["strategy=pipeline", "workers=1", "strategy.partition=[layer2,layer3]"],
        ["has 2 entries", "workers=1 need 0"],
    ),
    "speeds": (["strategy=pipeline", "strategy.speeds=fast"], ["strategy.speeds=fast", "must be a list"]),
    "schedule": (["strategy=pipeline", "strategy.schedule=gpip"], ["did you mean gpipe?"]),
    "micro-batches of 1f1b": (
        ["strategy=pipeline", "strategy.schedule=1f1b", "microbatches=1"],
        ["microbatches=1", "strategy.schedule=1f1b needs at least as many as there are stages, 2"],
    ),
    "stages a worker": (
        ["strategy=pipeline", "strategy.schedule=zbv", "strategy.virtual_stages=3"],
        ["strategy.virtual_stages=3", "strategy.schedule=zbv has 2 a worker"],
    ),
    "one stage a worker": (
        ["strategy=pipeline", "strategy.virtual_stages=2"],
        ["strategy.virtual_stages=2", "strategy.schedule=gpipe has 1 a worker"],
    ),
    "unequal rounds of interleaved": (
        ["strategy=pipeline", "strategy.schedule=interleaved", "microbatches=5", "batch=20"],
        ["microbatches=5", "in 2 rounds of equal size; the nearest is 4"],
    ),
    "micro-batches of dualpipe_v": (
        ["strategy=pipeline", "strategy.schedule=dualpipe_v", "microbatches=2"],
        ["microbatches=2", "dualpipe_v needs at least as many as there are stages, 4"],
    ),
    "computing again under zero_bubble": (
        ["strategy=pipeline", "strategy.schedule=zero_bubble", "strategy.recompute=full"],
        ["strategy.recompute=full", "choose strategy.recompute=none"],
    ),
    "compiled stages of one worker": (
        ["strategy=pipeline", "strategy.schedule=looped_bfs", "strategy.compile=true"],
        ["strategy.schedule=looped_bfs: goes without strategy.compile=true", "gpipe or 1f1b"],
    ),
    "stages of shards of one worker": (
        ["strategy=hybrid", "workers=4", "strategy.pipeline=2", "strategy.shard=2", "strategy.schedule=zbv"],
        ["strategy.schedule=zbv: goes without strategy.shard=2"],
    ),
    "partition of stages of one worker": (
        ["strategy=pipeline", "strategy.schedule=interleaved", "strategy.partition=[layer2]"],
        ["has 1 entries, and workers=2 of strategy.virtual_stages=2 need 3"],
    ),
    "clipping by stages that wait for nobody": (
        ["strategy=pipedream", "optimizer.clip_norm=1"],
        ["optimizer.clip_norm=1", "strategy=pipedream needs optimizer.clip_norm=null"],
    ),
    "micro-batches of two versions": (
        ["strategy=pipedream", "strategy.stash=two", "workers=4", "microbatches=2"],
        ["microbatches=2: strategy.stash=two needs at least as many as workers=4"],
    ),
    "two versions that are in step anyway": (
        ["strategy=pipedream", "strategy.stash=two", "microbatches=2", "strategy.vertical_sync=true"],
        ["strategy.vertical_sync=true", "strategy.stash=two needs strategy.vertical_sync=false"],
    ),
    "synchronised statistics of stages": (
        ["strategy=pipedream", "batchnorm=sync"],
        ["batchnorm=sync: strategy pipedream supports local"],
    ),
    "a key's former name": (
        ["strategy=pipeline", "strategy.checkpoint=always"],
        ["strategy.checkpoint=always", "choose strategy.recompute=full"],
    ),
    "memory": (["strategy=pipeline", "strategy.memory_gib=0"], ["memory_gib=0", "at least 0.001"]),
    "statistics of a pipeline": (["strategy=pipeline", "batchnorm=sync"], ["pipeline supports local"]),
    "checkpoint": (["resume=nowhere.pt"], ["resume=nowhere.pt: no such file"]),
    "pretrained": (["model=resnet18", "model.pretrained=nowhere.pt"], ["nowhere.pt: no such file"]),
    "no server": (
        ["strategy=tf_parameter_server", "strategy.servers=0"],
        ["strategy.servers=0", "at least 1"],
    ),
    "sharding": (
        ["strategy=tf_parameter_server", "strategy.sharding=fix"],
        ["sharding=fix", "none, fixed, min_size, max_size", "did you mean fixed?"],
    ),
    "torch's model on servers": (
        ["strategy=tf_parameter_server", "model=unet"],
        ["unet", "needs tensorflow", "cnn"],
    ),
    "no torch server": (
        ["strategy=parameter_server", "strategy.servers=0"],
        ["strategy.servers=0", "at least 1"],
    ),
    "staleness": (
        ["strategy=parameter_server", "strategy.mode=ssp", "strategy.staleness=-1"],
        ["strategy.staleness=-1", "at least 0"],
    ),
    "mode": (["strategy=parameter_server", "strategy.mode=asinc"], ["did you mean async?"]),
    "a program that isn't there": (
        ["strategy=mpi", "strategy.mpiexec=mpirunn"],
        ["strategy.mpiexec=mpirunn", "no such program"],
    ),
    "another rule under hogwild": (
        ["strategy=hogwild", "optimizer.name=adam"],
        ["optimizer.name=adam", "strategy=hogwild needs optimizer.name=sgd"],
    ),
    "another optimizer": (["optimizer.name=adamax"], ["adamax", "adam, adamw", "did you mean adam?"]),
    "decay": (["optimizer.weight_decay=-0.1"], ["optimizer.weight_decay=-0.1", "at least 0"]),
    "a norm of nothing": (["optimizer.clip_norm=0"], ["optimizer.clip_norm=0", "above 0"]),
    "a norm of no number": (["optimizer.clip_norm=small"], ["optimizer.clip_norm=small", "a number"]),
    "scale": (["optimizer.scale_lr=liner"], ["scale_lr=liner", "none, linear, sqrt", "mean linear?"]),
    "steps of the warm-up": (["optimizer.warmup_steps=0.5"], ["warmup_steps=0.5", "a whole number"]),
    "schedule of rates": (["optimizer.schedule=cosin"], ["constant, cosine, step", "did you mean cosine?"]),
    "a rate where none is used": (
        ["strategy=sandblaster_lbfgs", "optimizer.schedule=step"],
        ["optimizer.schedule=step", "strategy=sandblaster_lbfgs needs optimizer.schedule=constant"],
    ),
    "a norm where none is used": (
        ["strategy=sandblaster_lbfgs", "optimizer.clip_norm=1"],
        ["optimizer.clip_norm=1", "sandblaster_lbfgs needs optimizer.clip_norm=null"],
    ),
    "a checkpoint between averages": (
        ["strategy=local_sgd", "checkpoint_every=10"],
        ["checkpoint_every=10", "local_sgd writes no checkpoints"],
    ),
    "checkpoints that aren't written": (
        ["checkpoint_keep=3"],
        ["checkpoint_keep=3", "no checkpoints are written without checkpoint_every"],
    ),
    "no checkpoint kept": (["checkpoint_every=5", "checkpoint_keep=0"], ["checkpoint_keep=0", "at least 1"]),
    "half a checkpoint": (["checkpoint_every=5", "checkpoint_keep=1.5"], ["must be a whole number"]),
    "another library's word": (["max_to_keep=3"], ["max_to_keep", "did you mean checkpoint_keep?"]),
    "shares that are too many": (
        ["strategy=ddp", "workers=1", "batch_shares=[100,20]"],
        ["batch_shares=[100, 20]", "2 entries", "workers=1"],
    ),
    "shares that don't add up": (
        ["strategy=ddp", "workers=1", "batch_shares=[100]"],
        ["batch_shares=[100]", "adds up to 100", "128 samples", "nearest is [128]"],
    ),
    "shares of one": (["batch_shares=auto"], ["batch_shares=auto", "single", "leave it away"]),
    "shares of asynchronous workers": (
        ["strategy=parameter_server", "strategy.mode=ssp", "workers=1", "batch_shares=auto"],
        ["batch_shares=auto", "are asynchronous", "choose strategy.mode=sync"],
    ),
    "how shares are called": (
        ["strategy=ddp", "workers=1", "batch_shares=automatic"],
        ["batch_shares=automatic", "equal, auto", "did you mean auto?"],
    ),
    "speeds of other workers": (
        ["hardware.speeds=[1,0.5]"],
        ["hardware.speeds=[1, 0.5]", "2 entries", "workers=1"],
    ),
    "a speed above all": (["hardware.speeds=[1.5]"], ["hardware.speeds=[1.5]", "at most 1"]),
    "batch and limit": (["dataset.limit=100"], ["batch=128", "dataset.limit=100", "batch <= 100"]),
    "framework": (["strategy=tf_single", "model=unet"], ["unet", "torch", "needs tensorflow", "cnn"]),
    "batchnorm": (["batchnorm=sync"], ["batchnorm=sync", "single supports local"]),
    "precision": (["precision=fp16"], ["precision=fp16", "fp32, bf16", "did you mean"]),
    "NCCL on CPUs": (
        ["strategy=tf_mirrored", "workers=1", "strategy.reduction=nccl"],
        ["hardware.device=cpu", "strategy.reduction=nccl needs hardware.device=gpu"],
    ),
    "NCCL of workers on CPUs": (
        ["strategy=tf_multiworker", "workers=1", "strategy.communication=nccl"],
        ["hardware.device=cpu", "strategy.communication=nccl needs hardware.device=gpu"],
    ),
    "micro-batches under fit": (
        ["strategy=tf_single", "strategy.loop=fit", "microbatches=2"],
        ["microbatches=2", "strategy.loop=fit needs microbatches=1 at most"],
    ),
    "steps at once": (
        ["strategy=tf_single", "strategy.steps_per_execution=0"],
        ["steps_per_execution=0", "at least 1"],
    ),
    "steps that a worker is told of": (
        ["strategy=tf_parameter_server", "strategy.steps_per_execution=0"],
        ["steps_per_execution=0", "at least 1"],
    ),
    "what MPI exchanges": (
        ["strategy=tf_mpi", "strategy.sync=epoch_averge"],
        ["strategy.sync=epoch_averge", "gradients, epoch_average, none", "did you mean epoch_average?"],
    ),
    "a checkpoint of two models": (
        ["strategy=tf_mpi", "workers=1", "strategy.sync=none", "checkpoint_every=5"],
        ["checkpoint_every=5", "strategy.sync=none needs checkpoint_every=null"],
    ),
    "mpiexec": (
        ["strategy=tf_mpi", "workers=1", "strategy.mpiexec=mpiexce"],
        ["strategy.mpiexec=mpiexce", "no such program, here or on the PATH"],
    ),
    "mpiexec that isn't run": (["strategy=tf_mpi", "strategy.mpiexec=5"], ["strategy.mpiexec=5", "a text"]),
    "pretrained under Keras": (
        ["strategy=tf_single", "model=resnet18", "model.pretrained=w.pt"],
        ["model.pretrained=w.pt", "torch state dict", "tf_single"],
    ),
    "decay beside the largest elements": (
        ["strategy=ddp", "strategy.compression=topk", "optimizer.weight_decay=0.1"],
        ["optimizer.weight_decay=0.1", "strategy.compression=topk needs optimizer.weight_decay=0"],
    ),
    "devices": (MANY, ["workers=100000", "choose workers=", "share_devices=true"]),
    "a device that isn't there": (
        ["hardware.device=cpu", "hardware.devices=[9999]"],
        ["hardware.devices=[9999]", "the cpu devices here are 0"],
    ),
    "a device that is no number": (["hardware.devices=[first]"], ["hardware.devices=first", "whole number"]),
    "a device below 0": (["hardware.devices=[-1]"], ["hardware.devices=-1", "at least 0"]),
    "one device and no list": (["hardware.devices=1"], ["hardware.devices=1", "a list", "[1]"]),
    "a device twice": (["hardware.devices=[0,0]"], ["hardware.devices=[0, 0]", "different numbers"]),
    "fewer devices than workers": (
        ["strategy=ddp", "workers=2", "hardware.device=cpu", "hardware.devices=[0]"],
        ["hardware.devices=[0]", "workers=2 need 2 devices"],
    ),
    "a wait below 0": (["hardware.wait_minutes=-1"], ["hardware.wait_minutes=-1", "at least 0"]),
    "half a repetition": (["hardware.repeat_disturbed=0.5"], ["hardware.repeat_disturbed=0.5", "whole"]),
    "Slurm's key without Slurm": (["hardware.partition=gpu"], ["hardware.partition=gpu", "hardware=slurm"]),
    "no job at once": (["hardware=slurm", "hardware.jobs=0"], ["hardware.jobs=0", "at least 1"]),
    "no such scheduler": (["hardware.scheduler=pbs"], ["hardware.scheduler=pbs", "slurm"]),
    "a job's cluster": (["hardware=slurm", "hardware.address=a:1"], ["hardware.address=a:1", "of its own"]),
    "a job's idle hosts": (["hardware=slurm", "hardware.hosts=2"], ["hardware.hosts=2", "workers=1"]),
    "a job's nodes": (["hardware=slurm", "+hardware.options.nodes=2"], ["nodes", "decided by the run"]),
    "a job's time": (["hardware=slurm", "+hardware.options.time=5"], ["time", "hardware.time_limit"]),
    "a job's dashes": (["hardware=slurm", "+hardware.options.Qos=a"], ["Qos", "without its dashes"]),
    "a job's true": (["hardware=slurm", "+hardware.options.hold=true"], ["hold", "null for an option"]),
    "jobs of a plugin": (
        ["-m", "hydra/launcher=basic", "hardware=slurm", "batch=64,128"],
        ["hydra/launcher", "hardware.jobs=2"],
    ),
    "cores": (["hardware.cores_per_device=100000"], ["cores_per_device=100000", "may use"]),
    "custom without path": (["model=custom"], ["model.path=", "package.module.name"]),
    "custom package": (["model=custom", "model.path=no_such.Model"], ["no_such", "package.module.name"]),
    "out is here": (["out=."], ["out=.", "choose another"]),
    "values without -m": (["batch=64,128"], ["batch=64,128", "put -m before or after"]),
    "one out for two": (["-m", "out=same", "batch=64,128"], ["out=same", "two cells"]),
    "last cell, -m first": (["-m", "strategy=ddp", "workers=1", "batch=64,128,0"], ["batch=0", "at least 1"]),
    "last cell, -m in the middle": (
        ["strategy=ddp", "workers=2", "model=resnet18", "-m", "batch=64,127"],
        ["batch=127", "the nearest is 126"],
    ),
    "last cell, -m last": (["model=cnn,resnet81", "-m"], ["model=resnet81", "did you mean resnet18?"]),
}


@pytest.fixture(autouse=True)
def _no_ranks(request: pytest.FixtureRequest) -> None:
    """No command gets as far as starting one."""
    if "commands" in request.fixturenames:
        request.getfixturevalue("commands").forks = False


# One for each place that finds mistakes, as a command.
TYPED = (
    "no key",
    "flag",
    "strategy",
    "batch to share",
    "last cell, -m in the middle",
    "mpiexec",
    "out is here",
)


@pytest.mark.parametrize(("words", "fragments"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line_and_leaves_nothing(
    words: Sequence[str],
    fragments: Sequence[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert answer(*words) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert out == "" and line.startswith("error: ")
    assert all(fragment in line for fragment in fragments), line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("words", "fragments"), [MISTAKES[name] for name in TYPED], ids=TYPED)
def test_the_answer_comes_within_two_seconds(
    commands, words: Sequence[str], fragments: Sequence[str]
) -> None:
    durations: list[float] = []
    # The machine may be busy with something else: the best try counts.
    while len(durations) < TRIES and min(durations, default=SECONDS) >= SECONDS:
        start = time.monotonic()
        completed = commands.run(*words)
        durations.append(time.monotonic() - start)
    lines = completed.stderr.splitlines()
    assert (completed.returncode, completed.stdout, len(lines)) == (2, "", 1), completed.stderr
    assert lines[0].startswith("error: ")
    assert all(fragment in lines[0] for fragment in fragments), lines[0]
    assert commands.left() == []
    assert list(commands.folder.rglob("*")) == []
    assert min(durations) <= SECONDS


@pytest.mark.parametrize("cap", ["soon", "0", "nan"])
def test_a_cap_that_is_no_number_of_minutes_is_a_mistake(commands, cap: str) -> None:
    completed = commands.run("batch=64", SCALEGUIDE_MAX_MINUTES=cap)
    assert (completed.returncode, len(completed.stderr.splitlines())) == (2, 1)
    assert f"SCALEGUIDE_MAX_MINUTES={cap}" in completed.stderr


def test_a_batch_larger_than_the_data_is_a_mistake(commands, mnist: None) -> None:
    completed = commands.run("batch=60001")
    assert (completed.returncode, len(completed.stderr.splitlines())) == (2, 1)
    assert "choose batch <= 60000" in completed.stderr
    assert list(commands.folder.rglob("*")) == []


@pytest.mark.parametrize(
    ("typed", "sorted_"),
    [
        (["a=1", "-m", "b=2,3"], ["-m", "a=1", "b=2,3"]),
        (["-m", "a=1"], ["-m", "a=1"]),
        (["a=1", "--config-dir", "mine", "b=2"], ["--config-dir", "mine", "a=1", "b=2"]),
        (["a=1", "--config-dir=mine"], ["--config-dir=mine", "a=1"]),
        (["a=-1", "--cfg", "job", "--resolve"], ["--cfg", "job", "--resolve", "a=-1"]),
        ([], []),
    ],
)
def test_flags_come_first_with_their_values(typed: list[str], sorted_: list[str]) -> None:
    assert command_line.flags_first(typed) == sorted_


def cells(*typed: str) -> list[Config]:
    return compose.cells(command_line.parse(command_line.flags_first([*typed, "hardware.device=cpu"])))


def test_a_sweep_with_its_flag_in_the_middle_is_expanded() -> None:
    configs = cells(
        *("strategy=ddp", "workers=2", "model=resnet18", "-m", "batch=64,128"), "hardware.share_devices=true"
    )
    assert [(c.strategy["name"], c.workers, c.model["name"], c.batch) for c in configs] == [
        ("ddp", 2, "resnet18", 64),
        ("ddp", 2, "resnet18", 128),
    ]
    assert [c.out for c in configs] == [
        f"runs/ddp-resnet18-mnist-w2-b{batch}-s0-hardware.device=cpu-hardware.share_devices=True"
        for batch in (64, 128)
    ]


@pytest.mark.parametrize(
    ("file", "keys", "says"),
    [
        ("single", {"reference": "often"}, "must be options with values"),
        ("single", {"reference": {"loop": "fit"}}, "has no option loop"),
        ("ddp", {"baseline": "fit"}, "must be options with values"),
        ("ddp", {"reference": {}}, "one worker at most"),
        ("single", {"reference": {}, "synchronous": False, "parity": "it guesses"}, "one worker at most"),
        ("single", {"reference": {}}, None),
        ("single", {}, None),
    ],
)
def test_a_reference_trains_on_one_device(
    tmp_path: Path, file: str, keys: dict[str, object], says: str | None
) -> None:
    described = yaml.safe_load((CONF / "strategy" / f"{file}.yaml").read_text())
    described.pop("reference", None)
    (tmp_path / "strategy").mkdir()
    (tmp_path / "strategy" / "own.yaml").write_text(yaml.safe_dump({**described, "name": "own", **keys}))
    words = ("--config-dir", str(tmp_path), "strategy=own")
    if says is None:
        assert cells(*words)[0].reference is bool(keys)
        return
    with pytest.raises(ConfigError, match=rf"conf/strategy/own\.yaml: .*{says}"):
        cells(*words)


@pytest.mark.parametrize(
    ("study", "words", "attempts"),
    [
        *[("thrice", (), 1), ("other", (), 0), (None, (), 0)],
        # Whoever says how often decides.
        ("thrice", ("hardware.repeat_disturbed=0",), 0),
        ("other", ("hardware.repeat_disturbed=2",), 2),
    ],
)
def test_a_study_with_repetitions_measures_disturbed_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, study: str | None, words: tuple[str, ...], attempts: int
) -> None:
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"study": {"name": "thrice", "repeat": 3}}))
    monkeypatch.chdir(tmp_path)
    of_study = () if study is None else (f"tracking.study={study}",)
    assert cells(*of_study, *words)[0].hardware.repeat_disturbed == attempts


def test_a_framework_has_one_reference() -> None:
    described = [yaml.safe_load(path.read_text()) for path in (CONF / "strategy").glob("*.yaml")]
    references = {each["name"]: each["framework"] for each in described if "reference" in each}
    assert references == {"single": "torch", "tf_single": "tensorflow"}


def test_a_sweep_over_two_keys_is_their_product() -> None:
    configs = cells("model=cnn,mlp", "-m", "batch=32,64")
    assert [(c.model["name"], c.batch) for c in configs] == [
        ("cnn", 32),
        ("cnn", 64),
        ("mlp", 32),
        ("mlp", 64),
    ]


def test_one_place_under_two_spellings_is_one_place() -> None:
    with pytest.raises(ConfigError, match="two cells"):
        cells("-m", "out=same,./same")


def name(*overrides: str) -> str:
    return Path(cells(*overrides)[0].out).name.removesuffix("-hardware.device=cpu")


def test_a_run_is_named_by_what_differs_from_the_defaults() -> None:
    plain = "single-cnn-mnist-w1-b128-s0"
    device = "hardware.device=cpu"
    assert name() == plain
    assert name("epochs=1", "tracking.backend=none", "overwrite=true", "hardware.wait_minutes=1") == plain
    assert name("model=mlp", "seed=3", "batch=64") == "single-mlp-mnist-w1-b64-s3"
    # In the order of their keys, whatever the order in which they were typed.
    expected = f"{plain}-epochs=3-{device}-optimizer.lr=0.1"
    assert name("optimizer.lr=0.1", "epochs=3") == name("epochs=3", "optimizer.lr=0.1") == expected
    assert "/" not in name("model=custom", "model.path=os.path.join", "+model.options.a=x/y")


def test_a_long_name_is_cut_and_told_apart_by_a_hash() -> None:
    many = ["optimizer.lr=0.123456", "optimizer.momentum=0.654321", "evaluate_every=10", "max_minutes=1.25"]
    one, other = name(*many, "target_accuracy=0.91"), name(*many, "target_accuracy=0.92")
    assert len(one) == len(other) == compose.NAME_LIMIT == 100
    assert one.startswith("single-cnn-mnist-w1-b128-s0-evaluate_every=10-")
    assert one[:-9] == other[:-9] and one != other


def test_the_cap_shortens_a_run_and_never_lengthens_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEGUIDE_MAX_MINUTES", "0.5")
    assert (compose.cap_minutes(5), compose.cap_minutes(0.25)) == (0.5, 0.25)
    monkeypatch.delenv("SCALEGUIDE_MAX_MINUTES")
    assert compose.cap_minutes(5) == 5


def test_the_nearest_choice_is_found_whatever_its_case() -> None:
    assert nearest("DDP", ["tf_single", "ddp"]) == "ddp"
    assert nearest("", ["only"]) == "only"


def test_a_mistake_costs_no_heavy_import(commands) -> None:
    completed = commands.run("strategy=dpp", PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip() for line in completed.stderr.splitlines()}
    assert "hydra" in imported
    assert not {"torch", "tensorflow", "mlflow", "keras", "pandas"} & imported
    assert os.listdir(commands.folder) == []


def test_losses_that_can_not_equal_say_why_by_the_options_chosen() -> None:
    for words, synchronous, parity in (
        (("strategy=ddp",), True, "synchronous"),
        (("strategy=ddp", "strategy.compression=bf16"), True, "gradients in bf16"),
        (("strategy=parameter_server",), True, "synchronous"),
        (("strategy=parameter_server", "strategy.compression=topk"), True, "largest elements alone"),
        # The mode says more.
        (
            ("strategy=parameter_server", "strategy.mode=async", "strategy.compression=fp16"),
            False,
            "asynchronous",
        ),
    ):
        chosen = cells(*words)[0].strategy
        assert (chosen["synchronous"], chosen["parity"]) == (synchronous, parity)


def test_a_file_of_ones_own_that_would_not_be_read_is_named_with_ours(tmp_path: Path) -> None:
    ours, own = CONF / "model" / "cnn.yaml", tmp_path / "model" / "cnn.yaml"
    own.parent.mkdir()
    own.write_bytes(ours.read_bytes())
    assert cells("--config-dir", str(tmp_path), "model=cnn")[0].model["name"] == "cnn"
    own.write_text(own.read_text() + "# mine\n")
    with pytest.raises(ConfigError) as mistake:
        cells("--config-dir", str(tmp_path), "model=mlp")
    assert str(mistake.value) == (
        f"--config-dir {tmp_path}: {own} wouldn't be read, for {ours} has its name; give yours another"
    )


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("out=~/x", "can't be read as key=value for its character ~; the shell expands out=$HOME/x"),
        ("out=a=b", "for its character =; quote the value, for the shell, too: \"out='a=b'\""),
        ("out=a;b", "for its character ;; quote the value, for the shell, too: \"out='a;b'\""),
        ("out=(a", "can't be read as key=value; quote what has brackets or spaces"),
        ("hydra.run.dir=x", "has no effect, for Hydra writes no files here; out=DIR says where a run goes"),
        (
            "hydra.output_subdir=x",
            "has no effect, for Hydra writes no files here; out=DIR says where a run goes",
        ),
        (
            "hydra.job.chdir=true",
            "runs don't change folders, for `out` is relative to this one; leave it away",
        ),
        (
            "hydra/sweeper=optuna",
            "isn't used, for all cells are checked before the first; list values, as in",
        ),
    ],
)
def test_words_that_would_do_nothing_are_answered(word: str, says: str) -> None:
    with pytest.raises(ConfigError) as mistake:
        cells(word)
    assert str(mistake.value).startswith(f"{word}: {says}" if says.startswith("can't") else f"{word}: ")
    assert says in str(mistake.value)


def test_a_package_of_ones_own_called_src_is_named() -> None:
    says = r"'src' is this project's own package, in .*, and has no 'mine'; a package of yours needs another"
    with pytest.raises(ConfigError, match=says):
        import_paths.check("model.path", "src.mine.build")
