"""Train the stages of a cut model, one stage in each rank, for `model_split` and `pipeline`."""
