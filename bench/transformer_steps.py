"""Hold what one device computes of a transformer's step, from its operations, against published steps.

python -m bench.transformer_steps FOLDER

FOLDER has MosaicML's table of MPT under FSDP. Taken are its rows of eight A100s without recomputation.
Gathers within a node are hidden for the most part, so that the seconds that are predicted of computing
alone are to be somewhat below those that were measured.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from src.compat.torch import TensorsWithoutData
from src.measure.kernels import Trace
from src.predict import sheets
from src.predict.constants import Constants
from src.predict.traced import costs, programs
from src.runtime.torch import dry_run
from src.runtime.torch.kernel_counter import KernelCounter

# Layers, features and heads of MPT's sizes, and its vocabulary (llm-foundry, scripts/train/yamls/pretrain).
SHAPES = {"125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12), "1b": (24, 2048, 16)}
VOCABULARY = 50368
# The more micro-batches are traced, the longer it takes; each is as long as the other.
TRACED = 2


class Block(nn.Module):
    """A block of MPT: attention by heads and a feed-forward part, with norms and without biases."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(features, bias=False) for _ in range(2))
        self.attend = nn.Linear(features, 3 * features, bias=False)
        self.out = nn.Linear(features, features, bias=False)
        self.up = nn.Linear(features, 4 * features, bias=False)
        self.down = nn.Linear(4 * features, features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next features of x [samples, tokens, features]."""
        samples, tokens, features = x.shape
        parts = self.attend(self.norms[0](x)).chunk(3, -1)
        query, key, value = (each.view(samples, tokens, self.heads, -1).transpose(1, 2) for each in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(samples, tokens, features))
        made: Tensor = x + self.down(functional.gelu(self.up(self.norms[1](x))))
        return made


class Transformer(nn.Module):
    """A decoder whose head's weights are its embedding's."""

    def __init__(self, layers: int, features: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, features)
        self.places = nn.Embedding(tokens, features)
        self.blocks = nn.Sequential(*(Block(features, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(features, bias=False)

    def forward(self, numbers: Tensor) -> Tensor:
        """Return logits [samples, tokens, vocabulary]."""
        x = self.embedding(numbers) + self.places(torch.arange(numbers.shape[1]))
        return functional.linear(self.norm(self.blocks(x)), self.embedding.weight)


def trace_of(name: str, samples: int, tokens: int) -> Trace:
    """Return the trace of a step of `TRACED` micro-batches, computed in bf16, with an update by AdamW."""
    fake = TensorsWithoutData(allow_non_fake_inputs=True)
    counter = KernelCounter(fake, waits=True)
    model = Transformer(*SHAPES[name], tokens).bfloat16()
    dry_run.forget_data(model, fake)
    with fake, counter:
        numbers = torch.zeros(samples, tokens, dtype=torch.long)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for _ in range(2):
            optimizer.zero_grad()
            counter.begin()
            for _ in range(TRACED):
                logits = model(numbers).view(-1, VOCABULARY).float()
                functional.cross_entropy(logits, numbers.view(-1)).backward()
            counter.update()
            optimizer.step()
    return counter.trace()


def rows(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the first row of each size, number of tokens and micro-batch."""
    seen: set[tuple[str, str, str]] = set()
    with (folder / "mpt_fsdp_a100.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = row["Model"], row["SeqLen (T)"], row["MicroBatchSize"]
            plain = row["# GPUs"] == "8" and row["Activation Checkpointing"] == "False"
            if plain and row["Model"] in SHAPES and int(row["SeqLen (T)"]) <= 4096 and key not in seen:
                seen.add(key)
                yield row


def main() -> int:
    """Print the table."""
    constants, ratios = Constants(), []
    print("| model | tokens | samples | device | computing / measured step |")
    print("| --- | ---: | ---: | --- | ---: |")
    for row in rows(Path(sys.argv[1])):
        samples, tokens, parts = (int(row[key]) for key in ("MicroBatchSize", "SeqLen (T)", "GradAccum"))
        trace = trace_of(row["Model"], samples, tokens)
        taken = costs.seconds(trace.kernels, sheets.device(row["GPU"]), constants)
        program = programs.program(trace, taken, constants.host_seconds)
        update = program.last_seconds
        passes = (sum(program.computed) - update) / TRACED * parts
        measured = int(row["GlobalBatchSize"]) / float(row["Throughput (S/s)"])
        ratios.append((passes + update) / measured)
        print(f"| {row['Model']} | {tokens} | {samples} | {row['GPU']} | {ratios[-1]:.2f} |")
    print(f"median {np.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}, of {len(ratios)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
