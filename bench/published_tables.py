"""Read four published tables as rows of `python -m src.predict`.

The tables are no part of the project. Their files are those that their sources have, by the columns that are
read here: TensorFlow's benchmarks of 2017, MosaicML's of MPT on A100, torchgpipe's, and Table 1 of
Narayanan 2021.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

Line = dict[str, str]

# Millions of parameters by torchvision, Inception v3 with its auxiliary classifier.
PARAMETERS = {"InceptionV3": 27.2, "ResNet-50": 25.6, "ResNet-152": 60.2, "AlexNet": 61.1, "VGG16": 138.4}
IMAGE_SIZES = {"InceptionV3": 299}
SUMMED = {
    "parameter_server cpu": ("parameter_server", "cpu"),
    "parameter_server gpu": ("parameter_server", "gpu"),
    "replicated NCCL": ("nccl", ""),
    "replicated (no NCCL) gpu": ("parameter_server", "gpu"),
}
# MPT's layers, features and heads (llm-foundry, scripts/train/yamls/pretrain).
MPT = {
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}
# torchgpipe's AmoebaNet-D has no row of one device: its pipeline of two with one micro-batch, which computes
# all activations again and overlaps nothing, takes 4/3 of one device's time.
AMOEBANET = 26.733 * 4 / 3
GPIPE_RATES = {"AmoebaNet-D(18,256)": AMOEBANET, "ResNet-101": 95.862, "U-Net(5,64)": 28.5}


def _read(path: Path) -> list[Line]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def tensorflow(folder: Path) -> list[Line]:
    """Read the rows of several GPUs of TensorFlow's benchmarks, each with the rate of one GPU."""
    rows = _read(folder / "tf_cnn_benchmarks_2017.csv")
    place = ("platform", "model", "batch_per_gpu", "data")
    alone = {tuple(r[key] for key in place): r["images_per_s"] for r in rows if r["gpus"] == "1"}
    return list(_tensorflow([r for r in rows if r["gpus"] != "1"], alone, place))


def _tensorflow(
    rows: list[Line], alone: dict[tuple[str, ...], str], place: tuple[str, ...]
) -> Iterator[Line]:
    for row in rows:
        key = tuple(row[name] for name in place)
        if key not in alone:
            continue
        distributed = "distributed" in row["platform"]
        exchange, reduce_on = SUMMED.get(row["variable_update"], ("parameter_server", "gpu"))
        batch = int(row["batch_per_gpu"]) * int(row["gpus"])
        yield {
            "device": "p100" if "P100" in row["platform"] else "k80",
            "devices": row["gpus"],
            "devices_per_node": "8",
            # Amazon EC2: a p2.8xlarge has 10 Gbit/s.
            "network": "ethernet_10g" if distributed else "",
            "framework": row["platform"].split()[0] + " tensorflow",
            "precision": "fp32",
            "model": row["model"],
            "one_device_samples_per_second": alone[key],
            "gradient_bytes": str(PARAMETERS[row["model"]] * 4e6),
            "global_batch": str(batch),
            "input": row["data"],
            "image_size": str(IMAGE_SIZES.get(row["model"], 224)),
            "servers": _servers(row),
            "exchange": exchange,
            "reduce_on": reduce_on,
            "seconds": str(batch / float(row["images_per_s"])),
        }


def _servers(row: Line) -> str:
    """Return the servers that the source names, for eight nodes and some models; elsewhere each is one."""
    named = {"InceptionV3": "6", "ResNet-152": "4"}
    few = row["gpus"] == "64" and "(8 inst" in row["variable_update"]
    return named.get(row["model"], "") if few else ""


def mpt(folder: Path) -> list[Line]:
    """Read MosaicML's runs of MPT under FSDP, on A100s with 1,600 Gbit/s between nodes."""
    return [
        {
            "device": row["GPU"],
            "devices": row["# GPUs"],
            "devices_per_node": "8",
            "network": "25",
            "framework": "llm-foundry",
            "precision": "bf16",
            "model": "transformer",
            **dict(zip(("layers", "hidden", "heads"), map(str, MPT[row["Model"]]), strict=True)),
            "sequence": row["SeqLen (T)"],
            "vocabulary": "50368",
            "global_batch": row["GlobalBatchSize"],
            "micro_batch": row["MicroBatchSize"],
            "shard": row["# GPUs"],
            "recompute": "full" if row["Activation Checkpointing"] == "True" else "none",
            "flash_attention": "true",
            "seconds": str(float(row["GlobalBatchSize (T)"]) / float(row["Throughput (T/s)"])),
        }
        for row in _read(folder / "mpt_fsdp_a100.csv")
    ]


def megatron(folder: Path) -> list[Line]:
    """Read Table 1 of Narayanan 2021; a step's seconds are had from its TFLOP/s by the paper's equation 3."""
    found = []
    for row in _read(folder / "megatron2021_table1.csv"):
        layers, hidden, batch = int(row["layers"]), int(row["hidden"]), int(row["global_batch"])
        sequence, vocabulary = 2048, 51200
        flops = 96.0 * batch * sequence * layers * hidden**2
        flops *= 1 + sequence / (6 * hidden) + vocabulary / (16 * layers * hidden)
        found.append(
            {
                "device": "a100_80gb",
                "devices": row["gpus"],
                "devices_per_node": "8",
                "network": "infiniband_hdr",
                "framework": "megatron",
                "precision": "fp16",
                "model": "transformer",
                "layers": str(layers),
                "hidden": str(hidden),
                "heads": row["heads"],
                "sequence": str(sequence),
                "vocabulary": str(vocabulary),
                "global_batch": str(batch),
                "data": row["DP_derived"],
                "tensor": row["TP"],
                "pipeline": row["PP"],
                "recompute": "full",
                "seconds": str(flops / (float(row["tflops_per_gpu"]) * 1e12 * int(row["gpus"]))),
            }
        )
    return found


def torchgpipe(folder: Path) -> list[Line]:
    """Read torchgpipe's pipelines on P40s, each with the rate of one GPU, which is no row."""
    return [
        {
            "device": "p40",
            "devices": row["partitions"],
            "devices_per_node": "8",
            "framework": "torchgpipe",
            "precision": "fp32",
            "model": row["model"],
            "one_device_samples_per_second": str(GPIPE_RATES[row["model"]]),
            "global_batch": row["batch_size"],
            "micro_batch": str(float(row["batch_size"]) / int(row["microbatches"])),
            "pipeline": row["partitions"],
            "schedule": "gpipe",
            "recompute": "full" if row["checkpoint"] == "always" else row["checkpoint"],
            "seconds": str(float(row["batch_size"]) / float(row["samples_per_s"])),
        }
        for row in _read(folder / "torchgpipe_speed.csv")
        if row["strategy"] == "gpipe" and float(row["speedup_vs_ref"]) != 1.0
    ]
