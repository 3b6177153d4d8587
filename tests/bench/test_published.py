"""Published tables become rows as they are meant, and predictions are held against them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import published
from src.predict.calibrate import Fit

EC2 = "EC2 p2.8xlarge distributed (8 K80/instance)"
SERVERS = "distributed_replicated sync (8 inst: 6 PS)"
TENSORFLOW = f"""platform,model,batch_per_gpu,data,gpus,images_per_s,variable_update,source
DGX-1 8xP100,VGG16,64,real,1,140,replicated NCCL,
DGX-1 8xP100,VGG16,64,real,8,1000,replicated NCCL,
{EC2},ResNet-152,32,synthetic,1,20,{SERVERS},
{EC2},ResNet-152,32,synthetic,64,900,{SERVERS},
{EC2},ResNet-50,32,synthetic,64,900,no row of one GPU,
"""
MEGATRON = """heads,hidden,layers,TP,PP,DP_derived,gpus,global_batch,tflops_per_gpu
24,2304,24,1,1,32,32,512,137
"""
GPIPE = """model,strategy,partitions,microbatches,batch_size,checkpoint,samples_per_s,speedup_vs_ref
ResNet-101,single,1,1,118,none,95.862,1.0
ResNet-101,gpipe,2,1667,25000,except_last,135.539,1.4139
"""


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)


def test_tensorflows_rows_have_the_rate_of_one_gpu(tmp_path: Path) -> None:
    write(tmp_path, "tf_cnn_benchmarks_2017.csv", TENSORFLOW)
    vgg, resnet = published.read("tensorflow", tmp_path)
    assert (vgg.row.device, vgg.row.exchange, vgg.row.input, vgg.layout.nodes) == ("p100", "nccl", "real", 1)
    assert vgg.row.one_device_samples_per_second == 140 and vgg.row.seconds == pytest.approx(0.512)
    assert (resnet.row.device, resnet.layout.nodes, resnet.row.servers) == ("k80", 8, 4)


def test_megatrons_seconds_are_those_of_its_flops(tmp_path: Path) -> None:
    write(tmp_path, "megatron2021_table1.csv", MEGATRON)
    (step,) = published.read("megatron", tmp_path)
    # Equation 3: 96 B s l h^2 (1 + s / 6h + V / 16lh) = 1.5467e16, at 32 x 137 TFLOP/s.
    assert step.row.seconds == pytest.approx(3.528, rel=1e-3)
    # What was believed of an A100 before is not far off.
    assert step.parts(Fit().constants).seconds == pytest.approx(3.528, rel=0.15)


def test_a_pipelines_micro_batches(tmp_path: Path) -> None:
    write(tmp_path, "torchgpipe_speed.csv", GPIPE)
    (step,) = published.read("torchgpipe", tmp_path)
    assert (step.layout.microbatches, step.layout.schedule) == (1667, "gpipe")
    parts = step.parts(Fit().constants)
    assert parts.seconds == pytest.approx(25000 / 135.539, rel=0.2) and parts.exchange == 0


def test_rows_that_calibrate_are_not_held_against(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = TENSORFLOW.splitlines()
    more = [rows[0]]
    for model in ("VGG16", "AlexNet", "ResNet-50"):
        for gpus, rate in ((1, 140), (2, 270), (4, 530), (8, 1000)):
            more.append(f"DGX-1 8xP100,{model},64,real,{gpus},{rate},replicated NCCL,")
    write(tmp_path, "tf_cnn_benchmarks_2017.csv", "\n".join(more))
    steps = published.read("tensorflow", tmp_path)
    monkeypatch.setattr(published, "CALIBRATING", 4)
    found = published.drawn(steps, seed=0)
    assert len(found.errors) == len(steps) - 4 and max(found.errors) < 0.3
    assert published.drawn(steps, seed=0) == found
    assert len(published.without_a_model(steps, seed=0).errors) == len(steps)
