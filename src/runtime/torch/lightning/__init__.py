"""Train torch strategies through PyTorch Lightning: one module, one feed, one callback."""
