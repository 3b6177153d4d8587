"""List the words that other libraries and papers use for keys of a run."""

from __future__ import annotations

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
