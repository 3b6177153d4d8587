"""Split the tensors of a model's layers among ranks that see the same samples (Shoeybi 2019, section 3)."""
