"""Tell users of their mistakes: the errors, and the valid choice that is nearest to what was typed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

# Words for keys that other libraries and papers use; by them nothing is set, but the key is suggested.
SYNONYMS = {
    **dict.fromkeys(("learning_rate", "lr", "base_lr", "optimizer.learning_rate"), "optimizer.lr"),
    **dict.fromkeys(("momentum", "optimizer.beta"), "optimizer.momentum"),
    **dict.fromkeys(("weight_decay", "wd", "l2", "optimizer.wd"), "optimizer.weight_decay"),
    **dict.fromkeys(("optim", "optimiser", "optimizer.type", "optimizer.kind"), "optimizer.name"),
    **dict.fromkeys(("clip", "grad_clip", "max_grad_norm", "gradient_clip_val"), "optimizer.clip_norm"),
    **dict.fromkeys(("warmup", "warmup_steps"), "optimizer.warmup_steps"),
    **dict.fromkeys(("lr_schedule", "scheduler", "lr_scheduler"), "optimizer.schedule"),
    **dict.fromkeys(("batch_size", "bs", "global_batch", "global_batch_size", "train_batch_size"), "batch"),
    **dict.fromkeys(("world_size", "nproc", "nproc_per_node", "num_workers", "gpus", "num_gpus"), "workers"),
    **dict.fromkeys(("ranks", "np", "n_gpus", "replicas", "num_nodes", "nodes"), "workers"),
    **dict.fromkeys(("micro_batches", "num_microbatches", "accumulate_grad_batches"), "microbatches"),
    **dict.fromkeys(("gradient_accumulation", "gradient_accumulation_steps", "chunks"), "microbatches"),
    **dict.fromkeys(("max_epochs", "num_epochs", "n_epochs", "epoch"), "epochs"),
    **dict.fromkeys(("minutes", "max_time", "time_limit", "timeout"), "max_minutes"),
    **dict.fromkeys(("random_seed", "rng_seed"), "seed"),
    **dict.fromkeys(("dtype", "amp", "mixed_precision", "fp16", "bf16"), "precision"),
    **dict.fromkeys(("sync_batchnorm", "sync_bn", "bn"), "batchnorm"),
    **dict.fromkeys(("devices", "device_ids"), "hardware.devices"),
    **dict.fromkeys(("device", "accelerator"), "hardware.device"),
    **dict.fromkeys(("output", "output_dir", "out_dir", "save_dir", "run_dir"), "out"),
    **dict.fromkeys(("checkpoint", "ckpt", "ckpt_path", "resume_from", "load"), "resume"),
    **dict.fromkeys(("save_every", "checkpoint_interval"), "checkpoint_every"),
    **dict.fromkeys(("save_total_limit", "max_to_keep", "save_top_k", "keep_last"), "checkpoint_keep"),
    **dict.fromkeys(("eval_every", "eval_interval", "val_check_interval"), "evaluate_every"),
    **dict.fromkeys(("arch", "network", "net"), "model"),
    **dict.fromkeys(("data", "dataset_name"), "dataset"),
    **dict.fromkeys(("objective", "problem"), "task"),
    **dict.fromkeys(("parallelism", "distributed", "method"), "strategy"),
}


class CommandError(Exception):
    """An error that ends a command with one line, its message, and an exit status.

    The attribute `config` is the cell that can't be run because of it, once that is known.
    """

    exit_status = 1
    config: Any = None


class ConfigError(CommandError):
    """A mistake in the user's configuration; the message is one sentence for the user."""

    exit_status = 2


class CannotRunHere(ConfigError):
    """A configuration that this machine can't run, and another one could."""


class OwnCodeError(CommandError):
    """An error in a model, reader or strategy of the user's own; the message is one sentence."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return the choice closest to `word` in spelling, in whatever case; `choices` must not be empty."""
    spelled = {choice.lower(): choice for choice in choices}
    return spelled[difflib.get_close_matches(word.lower(), list(spelled), n=1, cutoff=0.0)[0]]


def nearest_key(word: str, keys: Iterable[str]) -> str:
    """Return the key that `word` is another name of, or else the closest in spelling, of `keys`."""
    keys = list(keys)
    meant = SYNONYMS.get(word.lower(), "")
    return meant if meant in keys else nearest(word, keys)
