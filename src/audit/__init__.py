"""Hold a distributed training against one device, step by step, and test what a difference comes from."""
