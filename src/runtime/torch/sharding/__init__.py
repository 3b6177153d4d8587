"""Shard parameters, gradients and optimizer state over ranks, which gather layers as they need them."""
