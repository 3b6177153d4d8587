"""Train transformers' Llama by `parallelize_module` over gloo on tokens in memory; started by torchrun."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from common import Clock, arguments
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

LENGTH, VOCABULARY = 128, 256

args = arguments()
clock = Clock(args)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
        num_hidden_layers=4,
        hidden_size=256,
        intermediate_size=512,
        num_attention_heads=4,
        num_key_value_heads=4,
        use_cache=False,
    )
)
layer = "model.layers.*."
plan: dict[str, ParallelStyle] = {f"{layer}self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
plan |= {f"{layer}mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
plan |= {f"{layer}{name}": RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")}
plan["lm_head"] = ColwiseParallel(output_layouts=Replicate())
parallelize_module(model, init_device_mesh("cpu", (world,)), plan)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=False)
tokens = torch.randint(VOCABULARY, (args.batch * args.steps, LENGTH + 1))
clock.begin()
for chosen in tokens.split(args.batch):
    optimizer.zero_grad()
    logits = model(chosen[:, :-1]).logits
    loss = functional.cross_entropy(logits.flatten(0, 1), chosen[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    loss.item()
    if clock.step():
        break
if rank == 0:
    clock.report()
dist.destroy_process_group()
