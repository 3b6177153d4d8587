"""Every torch strategy is rehearsed on a GPU that has no data: whole trainings, through Lightning's loop.

What a rank does on a GPU is right by its devices: every tensor that meets another one is where that is, the
host's copies are made on purpose, and a checkpoint has the same keys as on a CPU, on the CPU.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.accelerators import Accelerator
from pytorch_lightning.strategies import DDPStrategy
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.testing._internal.distributed.fake_pg import FakeProcessGroup, FakeStore

from src.config import ConfigError
from src.data.arrays import Arrays, Split
from src.measure.recorder import Recorder
from src.runtime.common import rounding
from src.runtime.common.context import RankContext
from src.runtime.common.mpi_world import MPIWorld
from src.runtime.common.update_terms import WorkerTerms
from src.runtime.torch import peak, setup
from src.runtime.torch.lightning import data_parallel
from src.runtime.torch.lightning.data_parallel import HookedDDPStrategy
from src.runtime.torch.parameter_server.replica import Replica
from src.runtime.torch.pipeline import cutting
from src.runtime.torch.tensor import proof
from src.strategies.torch.mpi import MPIAllReduce
from tests.runtime.torch.as_gpu import DEVICE, KIND, AsGPU
from tests.support import config

STEPS = 6
WORDS = ("model=cnn", "batch=8", "batchnorm=local", "checkpoint_every=3", "hardware.warmup_steps=1")


class MetaAccelerator(Accelerator):
    """Lightning's view of the device."""

    def setup_device(self, device: torch.device) -> None: ...
    def teardown(self) -> None: ...
    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {}

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [DEVICE]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return "meta"


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    generator = np.random.default_rng(0)
    train, test = 8 * STEPS, 12
    images = generator.integers(0, 256, (train + test, 28, 28, 1), dtype=np.uint8)
    labels = generator.integers(0, 10, train + test)
    return Arrays(
        Split((images[:train],), (labels[:train],)),
        Split((images[train:],), (labels[train:],)),
        (28, 28, 1),
        tuple("0123456789"),
        (0.1,),
        (0.3,),
        "generated",
    )


Rehearse = Callable[..., Recorder]


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks have a GPU, of which torch's autocast, unlike all else, wants to know the kind."""
    monkeypatch.setattr(setup, "root_device", lambda _: DEVICE)
    autocast = torch.autocast
    monkeypatch.setattr(torch, "autocast", lambda _, *further, **o: autocast("cpu", *further, **o))


def _gather_own(value: Any, gathered: list[Any] | None, _: int) -> None:
    """Gather of each rank what this one has, in place of an exchange that leaves memory as it finds it."""
    if gathered is not None:
        gathered[:] = [value] * len(gathered)


@pytest.fixture
def rehearse(arrays: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rehearse]:
    """Trains a strategy's rank on the device that has no data, and returns its recorder."""
    trainer = pl.Trainer
    monkeypatch.setattr(pl, "Trainer", lambda **o: trainer(**{**o, "accelerator": MetaAccelerator()}))
    # Only CUDA has streams.
    monkeypatch.setattr(DDPStrategy, "determine_ddp_device_ids", lambda _: None)
    # torch's own wrapper looks at data, and its reducer reads it.
    monkeypatch.setattr(DDPStrategy, "_setup_model", lambda _, model: model)
    monkeypatch.setattr(HookedDDPStrategy, "_register_ddp_hooks", lambda _: None)
    monkeypatch.setattr(dist, "broadcast_object_list", lambda *_, **__: None)
    monkeypatch.setattr(dist, "gather_object", _gather_own)
    # Peaks and losses after a training are figures, of which there are none.
    monkeypatch.setattr(peak, "facts", lambda *_: {})
    monkeypatch.setattr(rounding, "measure_gap", lambda *_: None)
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    threads = torch.get_num_threads()

    def train(
        strategy: str, *words: str, rank: int = 0, world: int = 1, host_alone: bool = False
    ) -> Recorder:
        chosen = config(f"strategy={strategy}", f"workers={world}", *WORDS, *words)
        hardware = dataclasses.replace(chosen.hardware, device="gpu", share_devices=host_alone)
        chosen = dataclasses.replace(chosen, hardware=hardware)
        for name, number in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world}.items():
            monkeypatch.setenv(name, str(number))
        if world > 1 or strategy != "single":
            dist.init_process_group("rehearsed", store=FakeStore(), rank=rank, world_size=world)
            monkeypatch.setattr(dist, "get_backend", lambda *_: "gloo" if host_alone else "nccl")
        context = RankContext(chosen, rank, world, arrays, tmp_path, (0,))
        recorder = Recorder(chosen, rank, tmp_path / str(rank), started=0.0, probes=False)
        module = importlib.import_module(f"src.strategies.torch.{strategy}")
        monkeypatch.setattr(module, "root_device", setup.root_device, raising=False)
        with AsGPU(host_alone=host_alone):
            module.train(context, recorder)
        return recorder

    yield train
    torch.set_num_threads(threads)
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture(scope="module", autouse=True)
def _backend() -> None:
    """A process group whose ranks exchange nothing, for tensors on either device."""
    dist.Backend.register_backend(
        "rehearsed",
        lambda common, options: FakeProcessGroup._create_internal(
            common.group_rank, common.group_size, options
        ),
        extended_api=True,
        devices=["cpu", "meta"],
    )


def check(recorder: Recorder, steps: int = STEPS) -> dict[str, Any]:
    """The training came to its end, and its checkpoint is on the CPU; returns that."""
    assert recorder.facts["status"] == "ok"
    assert recorder.steps == steps
    written = torch.load(recorder.folder.parent / "checkpoint.pt", weights_only=True)
    tensors = [
        *written["model"].values(),
        *(v for s in written["optimizer"]["state"].values() for v in s.values()),
    ]
    assert {tensor.device.type for tensor in tensors if isinstance(tensor, torch.Tensor)} == {"cpu"}
    return written


def whole_model(arrays: Arrays) -> set[str]:
    context = SimpleNamespace(config=config("strategy=single", *WORDS), arrays=arrays)
    return set(setup.build(context).state_dict())


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
def test_single(rehearse: Rehearse, arrays: Arrays, optimizer: str) -> None:
    written = check(
        rehearse("single", f"optimizer.name={optimizer}", "optimizer.clip_norm=1", "microbatches=2")
    )
    assert set(written["model"]) == whole_model(arrays)
    assert len(written["optimizer"]["state"]) > 0


def test_a_resumed_training_has_its_tensors_on_the_gpu(rehearse: Rehearse, tmp_path: Path) -> None:
    check(rehearse("single", "optimizer.name=adam"))
    path = tmp_path / "checkpoint.pt"
    resumed = rehearse("single", "optimizer.name=adam", f"resume={path}", "epochs=2")
    check(resumed, 2 * STEPS)


@pytest.mark.parametrize("strategy", ["ddp", "mpi"])
def test_copies(rehearse: Rehearse, arrays: Arrays, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if strategy == "mpi":
        monkeypatch.setattr(MPIWorld, "leave", lambda _: None)
    recorder = rehearse(strategy, "optimizer.clip_norm=1", "microbatches=2")
    assert set(check(recorder)["model"]) == whole_model(arrays)
    # How long a GPU waits for gradients is measured.
    assert recorder.facts["communication_seconds"] is not None


def test_a_bucket_of_gradients_goes_through_the_host_for_mpi(rehearse: Rehearse) -> None:
    recorder = rehearse("ddp", "checkpoint_every=null")
    gradients = torch.ones(6, device=DEVICE)
    bucket: Any = SimpleNamespace(buffer=lambda: gradients, is_last=lambda: True)
    with AsGPU():
        averaged = MPIAllReduce().hook(recorder, bucket).wait()
    # DDP goes on with the tensor that it has handed over.
    assert averaged is gradients
    assert recorder.payload_bytes == gradients.nbytes


def test_copies_that_are_averaged_now_and_then(rehearse: Rehearse) -> None:
    recorder = rehearse("local_sgd", "checkpoint_every=null", "strategy.sync_every=2")
    assert (recorder.facts["status"], recorder.steps) == ("ok", STEPS)


CLIPPED = "optimizer.clip_norm=1"
STAGES = [
    ("model_split", "strategy.partition=layers", CLIPPED),
    ("pipeline", "strategy.schedule=1f1b", "strategy.recompute=full", CLIPPED),
    ("pipedream", "strategy.recompute=full"),
    ("pipeline", "strategy.schedule=gpipe", CLIPPED),
]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("words", "host_alone"), [*((words, True) for words in STAGES), (STAGES[-1], False)])
def test_stages(
    rehearse: Rehearse, words: tuple[str, ...], rank: int, host_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = cutting.make_plan
    # Rank 0 measures, and would tell the other one; here each measures as rank 0.
    monkeypatch.setattr(
        cutting, "make_plan", lambda context, *a, **o: plan(dataclasses.replace(context, rank=0), *a, **o)
    )
    recorder = rehearse(*words, "microbatches=2", rank=rank, world=2, host_alone=host_alone)
    assert (recorder.facts["status"], recorder.steps) == ("ok", STEPS)


# In fp32: the stages of `cnn`, cut in the middle of its operations, 3,200 activations a sample; all of it.
FIRST, LAST, MAPS = 4 * (520 + 25_050), 4 * (400_500 + 5_010), 4 * 3_200
WHOLE = FIRST + LAST
# By name the words, the number of ranks, and what rank 0 exchanges along its axes in a step of 8 samples.
MESHES: dict[str, tuple[tuple[str, ...], int, dict[tuple[str, str], float]]] = {
    "shards": (("fsdp",), 2, {("shard", "all_gather"): WHOLE, ("shard", "reduce_scatter"): WHOLE}),
    "parts": (("tensor_parallel", "model=mlp", "model.dropout=0"), 2, {("tensor", "all_reduce"): 4 * 8 * 10}),
    "copies of shards": (
        ("hybrid", "strategy.shard=2"),
        4,
        {
            ("shard", "all_gather"): WHOLE,
            ("shard", "reduce_scatter"): WHOLE,
            ("data", "all_reduce"): WHOLE / 2,
        },
    ),
    "copies of stages": (
        ("hybrid", "strategy.pipeline=2", "strategy.partition=layers", "microbatches=2"),
        4,
        {("pipeline", "point_to_point"): 4 * MAPS, ("data", "all_reduce"): FIRST},
    ),
}


@pytest.mark.parametrize(("name", "rank"), [*((name, 0) for name in MESHES), ("shards", 1), ("parts", 1)])
def test_meshes(rehearse: Rehearse, name: str, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    words, world, exchanged = MESHES[name]
    monkeypatch.setattr(torch, "meta", KIND, raising=False)
    monkeypatch.setattr(KIND, "initialized", False)
    # Values without data prove nothing, and `fully_shard` takes them for parameters yet to come.
    monkeypatch.setattr(proof, "prove", lambda *_: None)
    monkeypatch.setattr(data_parallel, "check_copies", lambda *_: None)
    monkeypatch.setattr(FSDPParamGroup, "_validate_no_meta_params", lambda _: None)
    single = () if "microbatches=2" in words else ("microbatches=1",)
    recorder = rehearse(
        *words, *single, "optimizer.clip_norm=1", "checkpoint_every=null", rank=rank, world=world
    )
    assert (recorder.facts["status"], recorder.steps) == ("ok", STEPS)
    assert {(axis, kind): size for axis, kind, _, _, size in recorder.facts["exchanges"]} == exchanged


@pytest.mark.parametrize("make", ["parameter_server", "sandblaster_lbfgs"])
def test_workers_of_parameter_servers(arrays: Arrays, make: str, tmp_path: Path) -> None:
    words = (
        ("microbatches=2", "optimizer.clip_norm=1", "optimizer.weight_decay=0.1")
        if make == "parameter_server"
        else ()
    )
    chosen = config(f"strategy={make}", "workers=1", "model=resnet18", "batch=8", *words)
    with AsGPU():
        replica = Replica(RankContext(chosen, 0, 1, arrays, tmp_path, (0,)))
        gradient, _, _ = replica.gradient(np.arange(8), 0, 8.0, WorkerTerms(clip_norm=1.0, decay=0.1))
        replica.descend(0.1)
        values = replica.parameters()
        replica.merge(values, 0.5)
        replica.load_buffers(tuple(replica.buffers()))
        scores = replica.score(0, 12)
    # What travels is the host's.
    assert {tensor.device.type for tensor in (gradient, values)} == {"cpu"}
    assert scores.shape == (4,)
    assert {parameter.device.type for parameter in replica.model.parameters()} == {"meta"}


def test_hogwild_is_refused() -> None:
    with pytest.raises(ConfigError, match="strategy hogwild runs on cpu"):
        config("strategy=hogwild", "hardware.device=gpu")
