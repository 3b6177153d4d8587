"""Send less than whole gradients: half precision, low rank, or the largest elements alone."""
